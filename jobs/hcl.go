package jobs

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/hashicorp/nomad/api"
	"github.com/zclconf/go-cty/cty"
)

// Variable lets whoever runs a file choose a value of it with -var. What the
// job has there is the default.
type Variable struct {
	Name  string
	Path  string // of the value, like group.task.config.image
	About string // for people
}

// File is a job as people read it.
type File struct {
	Job       *api.Job
	Variables []Variable
	About     []string          // lines of comment above the job
	Comments  map[string]string // path of a value or block: why it is there
}

// HCL renders the file as Nomad's job specification. The error is that a path
// of a variable or comment leads nowhere.
func (f File) HCL() ([]byte, error) {
	w := writer{file: f, variables: map[string]Variable{}, values: map[string]cty.Value{}, commented: map[string]bool{}}
	for _, v := range f.Variables {
		w.variables[v.Path] = v
	}
	jobs := hclwrite.NewEmptyFile()
	block := jobs.Body().AppendNewBlock("job", []string{*f.Job.ID})
	w.fields(block.Body(), "", reflect.ValueOf(written(f.Job)).Elem())

	out := hclwrite.NewEmptyFile()
	for _, line := range f.About {
		comment(out.Body(), line)
	}
	if len(f.About) > 0 {
		out.Body().AppendNewline()
	}
	for _, v := range f.Variables {
		value, found := w.values[v.Path]
		if !found {
			return nil, fmt.Errorf("render job %s: there is nothing at %s", *f.Job.ID, v.Path)
		}
		one := out.Body().AppendNewBlock("variable", []string{v.Name}).Body()
		one.SetAttributeRaw("type", hclwrite.TokensForIdentifier(typeexpr.TypeString(value.Type())))
		one.SetAttributeValue("default", value)
		one.SetAttributeValue("description", cty.StringVal(v.About))
		out.Body().AppendNewline()
	}
	for path := range f.Comments {
		if !w.commented[path] {
			return nil, fmt.Errorf("render job %s: there is nothing at %s", *f.Job.ID, path)
		}
	}
	out.Body().AppendUnstructuredTokens(jobs.BuildTokens(nil))
	return hclwrite.Format(out.Bytes()), nil
}

// written is the job as its specification says it: there the identity of the
// name default is one among the others, which Nomad's parser takes apart.
func written(job *api.Job) *api.Job {
	whole := *job
	whole.TaskGroups = slices.Clone(job.TaskGroups)
	for i, g := range job.TaskGroups {
		group := *g
		group.Tasks = slices.Clone(g.Tasks)
		for k, t := range g.Tasks {
			if task := *t; task.Identity != nil {
				task.Identities = append([]*api.WorkloadIdentity{task.Identity}, task.Identities...)
				group.Tasks[k] = &task
			}
		}
		whole.TaskGroups[i] = &group
	}
	return &whole
}

// writer renders values by the tags that Nomad's own parser goes by.
type writer struct {
	file      File
	variables map[string]Variable  // by path
	values    map[string]cty.Value // that variables stand for, by path
	commented map[string]bool      // paths
}

// comment adds a line of comment.
func comment(body *hclwrite.Body, text string) {
	body.AppendUnstructuredTokens(hclwrite.Tokens{{Type: hclsyntax.TokenComment, Bytes: []byte(strings.TrimRight("# "+text, " ") + "\n")}})
}

// note writes the comment that belongs to the path.
func (w *writer) note(body *hclwrite.Body, path string) {
	if text, ok := w.file.Comments[path]; ok && !w.commented[path] {
		for line := range strings.SplitSeq(text, "\n") {
			comment(body, line)
		}
		w.commented[path] = true
	}
}

// apart makes room for a block, and writes the comment that belongs to it.
func (w *writer) apart(body *hclwrite.Body, path string) {
	if len(body.Attributes())+len(body.Blocks()) > 0 {
		body.AppendNewline()
	}
	w.note(body, path)
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// fields renders the fields of a struct: attributes first, then blocks.
func (w *writer) fields(body *hclwrite.Body, path string, of reflect.Value) {
	var blocks []func()
	for i := range of.NumField() {
		name, kind, _ := strings.Cut(of.Type().Field(i).Tag.Get("hcl"), ",")
		value := of.Field(i)
		if name == "" || kind == "label" || value.IsZero() || (path == "" && name == "id") {
			continue
		}
		if kind == "block" {
			blocks = append(blocks, func() { w.blocks(body, join(path, name), name, value) })
			continue
		}
		w.attribute(body, join(path, name), name, value.Interface())
	}
	for _, block := range blocks {
		block()
	}
}

// blocks renders what stands in blocks: one, several, or names with values.
func (w *writer) blocks(body *hclwrite.Body, path, name string, value reflect.Value) {
	switch value.Kind() {
	case reflect.Slice:
		for i := range value.Len() {
			w.blocks(body, path, name, value.Index(i))
		}
	case reflect.Pointer:
		w.blocks(body, path, name, value.Elem())
	case reflect.Map:
		if value.Type().Elem().Kind() == reflect.Pointer { // blocks, by their labels
			for _, key := range slices.SortedFunc(slices.Values(value.MapKeys()), func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) }) {
				w.blocks(body, path, name, value.MapIndex(key))
			}
			return
		}
		w.apart(body, path)
		w.pairs(body.AppendNewBlock(name, nil).Body(), path, value)
	default:
		w.apart(body, path)
		w.fields(body.AppendNewBlock(name, labels(value)).Body(), path, value)
	}
}

// pairs renders a map, by name: those of strings, and a driver's configuration.
func (w *writer) pairs(body *hclwrite.Body, path string, of reflect.Value) {
	pairs := map[string]any{}
	for _, key := range of.MapKeys() {
		pairs[key.String()] = of.MapIndex(key).Interface()
	}
	names := slices.Sorted(maps.Keys(pairs))
	for _, name := range names {
		if _, block := pairs[name].([]map[string]any); !block {
			w.attribute(body, join(path, name), name, pairs[name])
		}
	}
	for _, name := range names {
		if block, ok := pairs[name].([]map[string]any); ok {
			w.blocks(body, join(path, name), name, reflect.ValueOf(block))
		}
	}
}

// labels are the labels of a block, like the name of a task.
func labels(of reflect.Value) []string {
	var out []string
	for i := range of.NumField() {
		if _, kind, _ := strings.Cut(of.Type().Field(i).Tag.Get("hcl"), ","); kind == "label" {
			out = append(out, reflect.Indirect(of.Field(i)).String())
		}
	}
	return out
}

// attribute renders one value, or the variable that stands for it.
func (w *writer) attribute(body *hclwrite.Body, path, name string, value any) {
	w.note(body, path)
	v := constant(value)
	if variable, ok := w.variables[path]; ok {
		w.values[path] = v
		body.SetAttributeTraversal(name, hcl.Traversal{hcl.TraverseRoot{Name: "var"}, hcl.TraverseAttr{Name: variable.Name}})
		return
	}
	body.SetAttributeRaw(name, tokens(v))
}

// tokens renders a value. What Nomad interpolates later stays as it is.
func tokens(v cty.Value) hclwrite.Tokens {
	all := hclwrite.TokensForValue(v)
	for _, t := range all {
		t.Bytes = []byte(strings.ReplaceAll(string(t.Bytes), "$${", "${"))
	}
	return all
}

// constant is the value as HCL has it. Durations are texts there.
func constant(value any) cty.Value {
	switch v := value.(type) {
	case time.Duration:
		return cty.StringVal(duration(v))
	case string:
		return cty.StringVal(v)
	case []string:
		list := make([]cty.Value, len(v))
		for i, s := range v {
			list[i] = cty.StringVal(s)
		}
		if len(list) == 0 {
			return cty.ListValEmpty(cty.String)
		}
		return cty.ListVal(list)
	}
	switch v := reflect.ValueOf(value); v.Kind() {
	case reflect.Pointer:
		return constant(v.Elem().Interface())
	case reflect.Bool:
		return cty.BoolVal(v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return cty.NumberIntVal(v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return cty.NumberUIntVal(v.Uint())
	default:
		panic(fmt.Sprintf("a job has no value of type %T", value))
	}
}

// duration is a time without the zeros at its end.
func duration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
