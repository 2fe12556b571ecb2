package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"
)

// lateWriter begins an answer with its first byte, so that what fails before
// can still be answered as an error with its own status.
type lateWriter struct {
	w     *echo.Response
	begin func() // sets the headers
	code  int    // default 200
}

func (l *lateWriter) start() {
	if l.w.Committed {
		return
	}
	l.begin()
	if l.code == 0 {
		l.code = http.StatusOK
	}
	l.w.WriteHeader(l.code)
}

// Write begins the answer if that was not done and sends p.
func (l *lateWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	l.start()
	return l.w.Write(p)
}

// end ends the answer. err is returned while it can still be answered; after
// that the connection is cut, so that nobody takes a part for the whole.
func (l *lateWriter) end(err error) error {
	if err == nil {
		l.start()
		return nil
	}
	if l.w.Committed {
		panic(http.ErrAbortHandler)
	}
	return err
}
