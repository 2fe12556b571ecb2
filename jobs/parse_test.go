package jobs_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/gocty"
)

// parser reads a job specification as Nomad does: variables have their
// defaults, and what is known at run time only stays as it is written.
type parser struct {
	t    *testing.T
	text []byte
	vars map[string]cty.Value
}

func parse(t *testing.T, text []byte) *api.Job {
	t.Helper()
	file, diags := hclsyntax.ParseConfig(text, "job", hcl.InitialPos)
	require.False(t, diags.HasErrors(), "%v\n%s", diags, text)
	p := parser{t: t, text: text, vars: map[string]cty.Value{}}
	var job *api.Job
	for _, block := range file.Body.(*hclsyntax.Body).Blocks {
		switch block.Type {
		case "variable":
			p.vars[block.Labels[0]] = p.value(block.Body.Attributes["default"].Expr)
			require.NotEmpty(t, p.value(block.Body.Attributes["description"].Expr).AsString())
		case "job":
			job = &api.Job{ID: &block.Labels[0]}
			p.into(block.Body, reflect.ValueOf(job).Elem())
		default:
			require.Fail(t, "unknown block", block.Type)
		}
	}
	for _, task := range job.TaskGroups[0].Tasks {
		if len(task.Identities) > 0 && task.Identities[0].Name == "default" { // it is apart
			task.Identity, task.Identities = task.Identities[0], nil
		}
	}
	return job
}

// value evaluates an expression.
func (p parser) value(e hclsyntax.Expression) cty.Value {
	p.t.Helper()
	scope := &hcl.EvalContext{Variables: map[string]cty.Value{"var": cty.ObjectVal(p.vars)}}
	for _, name := range e.Variables() {
		if name.RootName() == "var" {
			continue
		}
		text := string(name.SourceRange().SliceBytes(p.text))
		require.NotContains(p.t, scope.Variables, name.RootName(), "the parser knows one name of a kind in an expression")
		v := cty.StringVal("${" + text + "}")
		for i := len(name) - 1; i > 0; i-- {
			v = cty.ObjectVal(map[string]cty.Value{name[i].(hcl.TraverseAttr).Name: v})
		}
		scope.Variables[name.RootName()] = v
	}
	v, diags := e.Value(scope)
	require.False(p.t, diags.HasErrors(), "%v", diags)
	return v
}

// into fills a struct by its tags. What no tag is for is an error.
func (p parser) into(body *hclsyntax.Body, to reflect.Value) {
	p.t.Helper()
	fields, blocks := map[string]reflect.Value{}, map[string]reflect.Value{}
	for i := range to.NumField() {
		name, kind, _ := strings.Cut(to.Type().Field(i).Tag.Get("hcl"), ",")
		switch {
		case kind == "block":
			blocks[name] = to.Field(i)
		case name != "" && kind != "label":
			fields[name] = to.Field(i)
		}
	}
	for name, attribute := range body.Attributes {
		require.Contains(p.t, fields, name)
		set(p.t, fields[name], p.value(attribute.Expr))
	}
	for _, block := range body.Blocks {
		require.Contains(p.t, blocks, block.Type)
		p.block(block, blocks[block.Type])
	}
}

// block fills what stands in a block, or adds to it.
func (p parser) block(block *hclsyntax.Block, to reflect.Value) {
	p.t.Helper()
	switch to.Kind() {
	case reflect.Slice:
		one := reflect.New(to.Type().Elem()).Elem()
		p.block(block, one)
		to.Set(reflect.Append(to, one))
	case reflect.Pointer:
		require.True(p.t, to.IsNil(), "%s is there twice", block.Type)
		to.Set(reflect.New(to.Type().Elem()))
		p.block(block, to.Elem())
	case reflect.Map:
		if to.Type().Elem().Kind() == reflect.String {
			to.Set(reflect.ValueOf(map[string]string{}))
			for name, attribute := range block.Body.Attributes {
				to.SetMapIndex(reflect.ValueOf(name), reflect.ValueOf(p.value(attribute.Expr).AsString()))
			}
			return
		}
		if to.Type().Elem().Kind() == reflect.Pointer { // blocks, by their labels
			if to.IsNil() {
				to.Set(reflect.MakeMap(to.Type()))
			}
			one := reflect.New(to.Type().Elem()).Elem()
			p.block(block, one)
			to.SetMapIndex(reflect.ValueOf(block.Labels[0]), one)
			return
		}
		to.Set(reflect.ValueOf(p.free(block.Body)))
	default:
		for i := range to.NumField() {
			if _, kind, _ := strings.Cut(to.Type().Field(i).Tag.Get("hcl"), ","); kind == "label" {
				set(p.t, to.Field(i), cty.StringVal(block.Labels[0]))
			}
		}
		p.into(block.Body, to)
	}
}

// free reads a driver's configuration, whose form Nomad does not know.
func (p parser) free(body *hclsyntax.Body) map[string]any {
	out := map[string]any{}
	for name, attribute := range body.Attributes {
		v := p.value(attribute.Expr)
		switch {
		case v.Type() == cty.String:
			out[name] = v.AsString()
		case v.Type() == cty.Bool:
			out[name] = v.True()
		case v.Type() == cty.Number:
			n, _ := v.AsBigFloat().Int64()
			out[name] = n
		default:
			list := []string{}
			for it := v.ElementIterator(); it.Next(); {
				_, one := it.Element()
				list = append(list, one.AsString())
			}
			out[name] = list
		}
	}
	for _, block := range body.Blocks {
		all, _ := out[block.Type].([]map[string]any)
		out[block.Type] = append(all, p.free(block.Body))
	}
	return out
}

// set gives a field a value of HCL.
func set(t *testing.T, to reflect.Value, v cty.Value) {
	t.Helper()
	if to.Kind() == reflect.Pointer {
		to.Set(reflect.New(to.Type().Elem()))
		to = to.Elem()
	}
	if to.Type() == reflect.TypeFor[time.Duration]() {
		d, err := time.ParseDuration(v.AsString())
		require.NoError(t, err)
		to.SetInt(int64(d))
		return
	}
	want, err := gocty.ImpliedType(to.Interface())
	require.NoError(t, err)
	v, err = convert.Convert(v, want)
	require.NoError(t, err)
	require.NoError(t, gocty.FromCtyValue(v, to.Addr().Interface()))
}
