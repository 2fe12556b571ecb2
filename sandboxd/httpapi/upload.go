package httpapi

import (
	"bytes"
	"errors"
	"hash"
	"io"

	"berth/sandboxd/httpkit"
	"berth/slots"
)

// uploadReader reads a body that is put. It ends with io.EOF only when the
// body was whole, not too long, and what its checksum says; with everything
// else the operation that reads it fails and changes nothing.
type uploadReader struct {
	in     io.Reader
	most   int64
	seen   int64
	sum    []byte    // that the body claims to have; nil: none
	digest hash.Hash // nil: none is claimed
	err    error     // why it ended other than at io.EOF
}

// Read reads from the body.
func (u *uploadReader) Read(p []byte) (int, error) {
	if u.err != nil {
		return 0, u.err
	}
	n, err := u.in.Read(p)
	u.seen += int64(n)
	if u.digest != nil {
		u.digest.Write(p[:n])
	}
	switch {
	case u.seen > u.most:
		u.err = httpkit.TooLarge(u.most)
	case errors.Is(err, io.EOF) && u.digest != nil && !bytes.Equal(u.digest.Sum(nil), u.sum):
		u.err = slots.Errorf(slots.KindBadRequest, "body has not the sha256 that it claims")
	case err != nil && !errors.Is(err, io.EOF):
		u.err = httpkit.BodyError(err)
	}
	if u.err != nil {
		return 0, u.err
	}
	return n, err
}

// blame is the error of an operation that read the body: the body's own, if
// that is what it failed of.
func (u *uploadReader) blame(err error) error {
	if u.err != nil && err != nil {
		return u.err
	}
	return err
}
