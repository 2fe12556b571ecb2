package strip

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == Role {
		if kept := os.Getenv("HOME") + os.Getenv("PATH"); kept != "" {
			os.Exit(9) // it was given what is none of its business
		}
		os.Exit(Main(os.Args[2]))
	}
	os.Exit(m.Run())
}

func TestSourcesBecomeScripts(t *testing.T) {
	s := New(Config{})
	script, err := s.Strip(t.Context(), "acme", TypeScript, "import {\n  a,\n} from 'x';\nimport type { T } from 'y';\nenum E { A = 1 }\nexport async function f(p: number, q?: T): Promise<E> { return a ?? E.A }\n")
	require.NoError(t, err)
	assert.Contains(t, script, "async function f(p, q)")
	assert.Contains(t, script, `require("x")`)
	assert.NotContains(t, script, `"y"`)
	script, err = s.Strip(t.Context(), "acme", "javascript", "export const f = () => 1")
	require.NoError(t, err)
	assert.Contains(t, script, "exports")
	_, err = s.Strip(t.Context(), "acme", "javascript", "let x: number = 1")
	wrong, ok := errors.AsType[*Error](err)
	require.True(t, ok, "%v: types are not JavaScript", err)
	assert.Regexp(t, `^line 1, column 5: `, wrong.Text)
	assert.NotContains(t, wrong.Text, "number")
	_, err = s.Strip(t.Context(), "acme", "javascript", "let a "+strings.Repeat("x", 1<<20))
	require.ErrorContains(t, err, "line 1, column 6: ")
	assert.Less(t, len(err.Error()), 300, "a name of any length")
	assert.Less(t, s.bytes, 4096)
	assert.Greater(t, s.bytes, 200, "what is wrong takes room as well")
}

// hostile are sources of so many levels of everything that a parser goes into.
func hostile(n int) map[string]string {
	r := strings.Repeat
	return map[string]string{
		"arrays": "x=" + r("[", n) + r("]", n), "parentheses": "x=" + r("(", n) + "1" + r(")", n), "objects": "x=" + r("{a:", n) + "1" + r("}", n),
		"blocks": r("{", n) + r("}", n), "functions": r("function f(){", n) + r("}", n), "classes": "x=" + r("class{a=", n) + "1" + r("}", n),
		"namespaces": r("namespace a{", n) + "export let b=1" + r("}", n), "switches": r("switch(1){case 1:", n) + r("}", n),
		"unary": "x=" + r("!", n) + "1", "signs": "x=" + r("- ", n) + "1", "powers": "x=" + r("2**", n) + "1", "sums": "x=" + r("1+", n) + "1", "commas": "x=" + r("1,", n) + "1",
		"comparisons": "x=" + r("a<", n) + "b", "assignments": "x=" + r("a=", n) + "1", "spread": "f(" + r("...[", n) + r("]", n) + ")",
		"arrows": "x=" + r("a=>", n) + "1", "async arrows": "x=" + r("async a=>", n) + "1", "defaults": "x=" + r("(a=", n) + "1" + r(")=>1", n),
		"conditions": "x=" + r("a?b:", n) + "1", "conditions within": "x=" + r("a?", n) + "1" + r(":1", n), "conditions or arrows": "x=" + r("a?(b):(c):d=>", n) + "1",
		"templates": "x=" + r("`${", n) + "1" + r("}`", n), "tags": "x=a" + r("``", n), "calls": "x" + r("()", n), "members": "x" + r(".a", n), "news": "x=" + r("new ", n) + "a",
		"patterns": "let " + r("[", n) + "a" + r("]", n) + "=1", "ifs": r("if(1)", n) + ";", "elses": r("if(1);else ", n) + ";", "loops": r("for(;;)", n) + ";", "yields": "function*f(){" + r("yield ", n) + "1}",
		"tuples": "type T=" + r("[", n) + "1" + r("]", n), "generics": "let x:" + r("A<", n) + "1" + r(">", n), "function types": "type T=" + r("(a:", n) + "1" + r(")=>1", n),
		"types of keys": "type T=" + r("keyof ", n) + "1", "conditional types": "type T=" + r("A extends B?", n) + "1" + r(":1", n), "object types": "type T=" + r("{a:", n) + "1" + r("}", n),
		"casts": "x=" + r("<a>", n) + "1", "elements": "x=" + r("<a>", n) + r("</a>", n), "type arguments": "x=" + r("a<b>(", n) + "1" + r(")", n), "labels": r("a:{", n) + r("}", n),
	}
}

func TestNoSourceEndsTheProcessThatAsks(t *testing.T) {
	s := New(Config{Time: 150 * time.Millisecond})
	var all sync.WaitGroup
	for name, source := range hostile(30_000) {
		all.Go(func() {
			_, err := s.Strip(t.Context(), name, TypeScript, source)
			if err == nil {
				return // it was read all the same
			}
			wrong, ok := errors.AsType[*Error](err)
			if assert.True(t, ok, "%s: %v", name, err) {
				assert.Less(t, len(wrong.Text), 1000, name)
				assert.NotContains(t, wrong.Text, "goroutine", name)
			}
		})
	}
	all.Wait()
	s = New(Config{})
	_, err := s.Strip(t.Context(), "acme", TypeScript, "let x: number = 1")
	require.NoError(t, err)
	_, err = s.Strip(t.Context(), "acme", TypeScript, "x="+strings.Repeat("[", 1_000_000))
	require.EqualError(t, err, "the source is nested too deeply")
}

func TestSourcesThatPeopleWriteAreNotTooDeep(t *testing.T) {
	s := New(Config{})
	for name, source := range hostile(100) {
		_, err := s.Strip(t.Context(), "acme", TypeScript, source)
		if err != nil {
			assert.Regexp(t, `^line 1, `, err.Error(), "%s: it is wrong at most", name)
		}
	}
}

func TestASourceThatTakesTooMuchIsRefused(t *testing.T) {
	for want, c := range map[string]struct {
		source string
		time   time.Duration
	}{
		"the source takes more than 1ms to read":                {"let x = 1", time.Millisecond},
		"the source takes too much memory to read":              {"x = [" + strings.Repeat("0,", 20<<20) + "]", 0},
		"the script of the source has more than 16777216 bytes": {strings.Repeat("{", 3000) + strings.Repeat("}", 3000), 0},
	} {
		s := New(Config{Time: c.time})
		_, err := s.Strip(t.Context(), "acme", "javascript", c.source)
		wrong, ok := errors.AsType[*Error](err)
		require.True(t, ok, "%v", err)
		assert.Equal(t, want, wrong.Text)
		assert.Equal(t, c.time == 0, len(s.byKey) == 1, "what is so on every machine is kept")
	}
}

func TestAProcessThatCannotRunIsNoFaultOfTheSource(t *testing.T) {
	for _, program := range [][]string{{"/does/not/exist"}, {"/bin/true"}, {"/bin/false"}, {"/bin/sh", "-c", "kill -9 $$"}} {
		s := New(Config{Program: program})
		_, err := s.Strip(t.Context(), "acme", TypeScript, "let x = 1")
		e, ok := errors.AsType[*slots.Error](err)
		require.True(t, ok, "%v: %v", program, err)
		assert.Equal(t, slots.KindInternal, e.Kind)
		assert.Equal(t, slots.ExecutedNever, e.Executed)
		assert.Empty(t, s.byKey, "another try may go better")
	}
}

func TestAScriptIsMadeOnce(t *testing.T) {
	s := New(Config{})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			_, err := s.Strip(t.Context(), "acme", TypeScript, "let x: number = 1")
			assert.NoError(t, err)
		})
	}
	all.Wait()
	s.config.Program = []string{"/does/not/exist"}
	for _, tenant := range []string{"acme", "globex"} {
		_, err := s.Strip(t.Context(), tenant, TypeScript, "let x: number = 1")
		require.NoError(t, err)
	}
	_, err := s.Strip(t.Context(), "acme", "javascript", "let x: number = 1")
	require.Error(t, err, "that is another source")

	for i := range 2 * keptSources {
		s.keep(&stripped{key: [32]byte{byte(i), byte(i >> 8)}, made: made{Script: "x"}})
	}
	assert.Equal(t, keptSources, s.order.Len())
	assert.Len(t, s.byKey, keptSources)
	for i := range 8 {
		s.keep(&stripped{key: [32]byte{byte(i), 1, 1}, made: made{Script: strings.Repeat("x", keptBytes/3)}})
	}
	assert.LessOrEqual(t, s.bytes, keptBytes)
	assert.Len(t, s.byKey, s.order.Len())
}

func TestATenantWaitsForItselfAndNobodyElse(t *testing.T) {
	turns := newTurns(2)
	give, err := turns.take(t.Context(), "acme")
	require.NoError(t, err)
	ctx, leave := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	leave(gone)
	_, err = turns.take(ctx, "acme")
	require.ErrorIs(t, err, gone, "it has its turn")
	other, err := turns.take(t.Context(), "globex")
	require.NoError(t, err, "one place is left")
	_, err = turns.take(ctx, "initech")
	require.ErrorIs(t, err, gone, "none is left")
	give()
	other()
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			give, err := turns.take(t.Context(), fmt.Sprint(i%5))
			if assert.NoError(t, err) {
				give()
			}
		})
	}
	all.Wait()
	assert.Empty(t, turns.tenants)
	assert.Empty(t, turns.places)
}
