package workspace

import (
	"bytes"
	"context"
	"encoding/json"
	"io"

	"berth/slots"
)

// Op is an operation in the form in which it crosses a process boundary:
// arguments and reply are JSON, content is a stream. in and out may be nil
// where the operation has no use for them. The error is a *slots.Error; see
// EncodeError.
type Op func(ctx context.Context, t *Tree, args json.RawMessage, in io.Reader, out io.Writer) (reply any, err error)

// Ops is the table of all operations by name.
func Ops() map[string]Op {
	return map[string]Op{
		"stat":    plain((*Tree).Stat),
		"read":    sending((*Tree).Read),
		"write":   taking((*Tree).Write),
		"edit":    plain((*Tree).Edit),
		"list":    plain((*Tree).List),
		"glob":    plain((*Tree).Glob),
		"grep":    sending((*Tree).Grep),
		"archive": sending((*Tree).Archive),
		"tar":     sending((*Tree).Tar),
		"untar":   taking((*Tree).Untar),
		"mkdir":   plain((*Tree).Mkdir),
		"remove":  plain((*Tree).Remove),
		"deleted": plain((*Tree).Deleted),
	}
}

func plain[A, R any](run func(*Tree, context.Context, A) (R, error)) Op {
	return func(ctx context.Context, t *Tree, raw json.RawMessage, _ io.Reader, _ io.Writer) (any, error) {
		args, err := decode[A](raw)
		if err != nil {
			return nil, err
		}
		return answer(run(t, ctx, args))
	}
}

func sending[A, R any](run func(*Tree, context.Context, A, io.Writer) (R, error)) Op {
	return func(ctx context.Context, t *Tree, raw json.RawMessage, _ io.Reader, out io.Writer) (any, error) {
		args, err := decode[A](raw)
		if err != nil {
			return nil, err
		}
		if out == nil {
			out = io.Discard
		}
		return answer(run(t, ctx, args, out))
	}
}

func taking[A, R any](run func(*Tree, context.Context, A, io.Reader) (R, error)) Op {
	return func(ctx context.Context, t *Tree, raw json.RawMessage, in io.Reader, _ io.Writer) (any, error) {
		args, err := decode[A](raw)
		if err != nil {
			return nil, err
		}
		if in == nil {
			in = bytes.NewReader(nil)
		}
		return answer(run(t, ctx, args, in))
	}
}

// answer gives no reply beside an error, so that nobody takes half of one for
// the whole.
func answer[R any](reply R, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return reply, nil
}

// decode reads arguments; none at all are the zero value. An unknown field is
// a mistake of our own side and refused.
func decode[A any](raw json.RawMessage) (A, error) {
	var args A
	if len(raw) == 0 {
		return args, nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&args); err != nil {
		return args, slots.Errorf(slots.KindBadRequest, "invalid arguments: %w", err)
	}
	return args, nil
}
