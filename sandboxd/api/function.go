package api

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// FunctionTool is the name of the tool that takes FunctionArgs.
const FunctionTool = "function"

// Source types of a function. TypeScript is stripped to JavaScript before it
// comes here.
const (
	SourcePython     = "python"
	SourceJavaScript = "javascript"
)

// FunctionArgs are the arguments of the tool "function": one run of one
// function's source. Arguments travel as data, never as code.
type FunctionArgs struct {
	Name       string                     `json:"name"` // of the function in the source
	ToolID     string                     `json:"tool_id,omitempty"`
	SourceCode string                     `json:"source_code"`
	SourceType string                     `json:"source_type"`
	Args       map[string]json.RawMessage `json:"args,omitempty"`
	// JSONSchema describes the parameters: an object schema, or an object that
	// has one under "parameters". JavaScript is called by it and requires it.
	JSONSchema json.RawMessage `json:"json_schema,omitempty"`
	// ArgsJSONSchema, when there, has nested objects arrive with attributes.
	ArgsJSONSchema json.RawMessage `json:"args_json_schema,omitempty"`
	// Environment is the key of a built environment; "" is the image's own
	// interpreter.
	Environment string `json:"environment,omitempty"`
	// Directory is where it runs, below the container's home; "": the home
	// itself, or the workspace where there is none.
	Directory string `json:"directory,omitempty"`
	// Env is put over the slot's environment: null removes a name, "" stays.
	Env map[string]*string `json:"env,omitempty"`
	// ReturnCharLimit bounds FunctionResult.Text, in code points; 0 means
	// DefaultReturnChars.
	ReturnCharLimit int            `json:"return_char_limit,omitempty"`
	Agent           *FunctionAgent `json:"agent,omitempty"`
}

// DefaultReturnChars is FunctionArgs.ReturnCharLimit when that is 0.
const DefaultReturnChars = 50_000

// State encodings of FunctionAgent.
const (
	StateJSON   = "json"
	StatePickle = "pickle+base64" // opaque; opened inside the slot only
)

// FunctionAgent is for whom a function runs.
type FunctionAgent struct {
	ID            string          `json:"id"`
	ProjectID     string          `json:"project_id,omitempty"`
	State         json.RawMessage `json:"state,omitempty"`          // JSON, or a JSON string of StatePickle
	StateEncoding string          `json:"state_encoding,omitempty"` // "" means StateJSON
	ReturnState   bool            `json:"return_state,omitempty"`
}

// How a function's run ended.
const (
	FunctionSuccess = "success"
	FunctionFailed  = "error"
)

// FunctionErrorKind sorts what a run can fail with.
type FunctionErrorKind string

// The kinds of FunctionError.
const (
	FunctionException FunctionErrorKind = "exception" // the source or the function raised
	FunctionTimeout   FunctionErrorKind = "timeout"
	FunctionExit      FunctionErrorKind = "exit"      // it ended its process
	FunctionSignal    FunctionErrorKind = "signal"    // its process was killed
	FunctionOOM       FunctionErrorKind = "oom"       // it was killed for want of memory
	FunctionCorrupted FunctionErrorKind = "corrupted" // it ran, and its result could not be read
	FunctionInstall   FunctionErrorKind = "install"   // its environment could not be built
	FunctionSpawn     FunctionErrorKind = "spawn"     // its interpreter could not be started
	FunctionCancelled FunctionErrorKind = "cancelled"
)

// FunctionResult is what one run gave: Result.Function of a call of the tool
// "function" that was carried out.
type FunctionResult struct {
	Status     string          `json:"status"`      // FunctionSuccess or FunctionFailed
	FuncReturn json.RawMessage `json:"func_return"` // any JSON, whole, numbers with all their digits; null after an error
	Text       string          `json:"text"`        // what was returned as text, or what went wrong as a sentence
	Truncated  bool            `json:"truncated"`   // Text was cut to the return limit
	Error      *FunctionError  `json:"error,omitempty"`
	AgentState json.RawMessage `json:"agent_state"` // null unless the function declares it, it was asked for, and nothing was raised
	Stdout     []string        `json:"stdout"`      // what was written, in one piece; empty when nothing was
	Stderr     []string        `json:"stderr"`
}

// FunctionError says why a run failed. Name and Message are those of the
// exception where there is one.
type FunctionError struct {
	Kind      FunctionErrorKind `json:"kind"`
	Name      string            `json:"name"`
	Message   string            `json:"message"`
	Traceback string            `json:"traceback,omitempty"`
}

// maxSentence bounds a Sentence, in code points.
const maxSentence = 1000

// Sentence is FunctionResult.Text of a function that failed so. What carries a
// sentence of its own is not cut.
func (e *FunctionError) Sentence(function string) string {
	switch e.Kind {
	case FunctionTimeout, FunctionCorrupted, FunctionSpawn, FunctionInstall:
		return e.Message
	default:
	}
	text := "Error executing function " + function + ": " + e.Name
	if e.Message != "" {
		text += ": " + e.Message
	}
	text, _ = CutText(text, maxSentence)
	return text
}

// CutText is the beginning of the text, at most limit code points, and how many
// the whole has.
func CutText(text string, limit int) (string, int) {
	n := utf8.RuneCountInString(text)
	if n <= limit {
		return text, n
	}
	at := 0
	for range limit {
		_, size := utf8.DecodeRuneInString(text[at:])
		at += size
	}
	return text[:at], n
}

// FunctionResult reads Function. It is nil for a call that was not carried
// out, and for every other tool.
func (r Result) FunctionResult() (*FunctionResult, error) {
	if len(r.Function) == 0 {
		return nil, nil
	}
	var f FunctionResult
	if err := json.Unmarshal(r.Function, &f); err != nil {
		return nil, fmt.Errorf("read function result: %w", err)
	}
	return &f, nil
}
