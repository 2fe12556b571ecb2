package workspace

import "slices"

// smallest keeps the n smallest of any number of values, in memory for 2n.
type smallest[T any] struct {
	n       int
	compare func(a, b T) int
	kept    []T
	dropped bool // values were left out
}

func (s *smallest[T]) add(v T) {
	s.kept = append(s.kept, v)
	if len(s.kept) >= 2*s.n {
		s.cut()
	}
}

// sorted returns what is kept, smallest first.
func (s *smallest[T]) sorted() []T {
	s.cut()
	return s.kept
}

func (s *smallest[T]) cut() {
	slices.SortFunc(s.kept, s.compare)
	if len(s.kept) > s.n {
		clear(s.kept[s.n:])
		s.kept = s.kept[:s.n]
		s.dropped = true
	}
}
