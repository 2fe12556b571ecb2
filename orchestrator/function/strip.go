package function

import (
	"container/list"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"

	"github.com/evanw/esbuild/pkg/api"
)

// Bounds of kept results.
const (
	keptSources = 512
	keptBytes   = 32 << 20
)

// stripper makes scripts of TypeScript and JavaScript, and keeps what it has
// made.
type stripper struct {
	mu    sync.Mutex // guards what is below; nothing is made under it
	byKey map[[sha256.Size]byte]*list.Element
	order list.List // of *stripped, those used last at the end
	bytes int
}

// stripped is one result.
type stripped struct {
	key  [sha256.Size]byte
	text string
	err  error
}

// strip makes a script, which is what slots run, of a TypeScript or JavaScript
// source: types are left out, and import and export become require and
// exports. The error says where the source is wrong, with the line but without
// its text.
func (s *stripper) strip(sourceType, source string) (string, error) {
	key := sha256.Sum256([]byte(sourceType + ":" + source))
	s.mu.Lock()
	if e, ok := s.byKey[key]; ok {
		s.order.MoveToBack(e)
		s.mu.Unlock()
		kept := e.Value.(*stripped) // the list holds nothing else
		return kept.text, kept.err
	}
	s.mu.Unlock()
	made := &stripped{key: key}
	made.text, made.err = transform(sourceType, source)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey == nil {
		s.byKey = map[[sha256.Size]byte]*list.Element{}
	}
	if _, ok := s.byKey[key]; ok {
		return made.text, made.err
	}
	s.byKey[key] = s.order.PushBack(made)
	s.bytes += len(made.text)
	for s.order.Len() > keptSources || s.bytes > keptBytes && s.order.Len() > 1 {
		oldest := s.order.Remove(s.order.Front()).(*stripped) // the list holds nothing else
		s.bytes -= len(oldest.text)
		delete(s.byKey, oldest.key)
	}
	return made.text, made.err
}

func transform(sourceType, source string) (string, error) {
	o := api.TransformOptions{
		Loader: api.LoaderJS, Target: api.ES2022, Format: api.FormatCommonJS, Platform: api.PlatformNode, LogLevel: api.LogLevelSilent,
	}
	if sourceType == sourceTypeScript {
		o.Loader = api.LoaderTS
	}
	made := api.Transform(source, o)
	if len(made.Errors) == 0 {
		return string(made.Code), nil
	}
	var all []string
	for _, e := range made.Errors[:min(len(made.Errors), 5)] {
		at := ""
		if e.Location != nil {
			at = fmt.Sprintf("line %d, column %d: ", e.Location.Line, e.Location.Column)
		}
		all = append(all, at+e.Text)
	}
	return "", fmt.Errorf("%s", strings.Join(all, "; "))
}
