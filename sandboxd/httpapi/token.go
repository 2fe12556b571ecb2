package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"berth/slots"
)

var errUnauthorized = slots.Errorf(slots.KindUnauthorized, "missing or wrong bearer token")

// tokens are the digests of those that open the routes.
type tokens struct {
	now    [sha256.Size]byte
	before [sha256.Size]byte
	until  time.Time // when the one before ends
}

// Rotate has requests bear another token from now on. The one before stays
// good for the grace, so that nobody who is about to hear of the new one is
// turned away; the one before that ends at once. The same token again changes
// nothing, and a Server that asks for none goes on asking for none.
func (s *Server) Rotate(token string, grace time.Duration) {
	old := s.tokens.Load()
	next := sha256.Sum256([]byte(token))
	if token == "" || old == nil || old.now == next {
		return
	}
	s.tokens.Store(&tokens{now: next, before: old.now, until: time.Now().Add(grace)})
}

// authorise compares digests, so that neither the token's text nor its length
// shows in the time that it takes.
func (s *Server) authorise(r *http.Request) error {
	good := s.tokens.Load()
	if good == nil {
		return nil
	}
	values := r.Header[echo.HeaderAuthorization]
	if len(values) != 1 {
		return errUnauthorized
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	sum := sha256.Sum256([]byte(token))
	fits := subtle.ConstantTimeCompare(sum[:], good.now[:])
	if time.Now().Before(good.until) {
		fits |= subtle.ConstantTimeCompare(sum[:], good.before[:])
	}
	if !strings.EqualFold(scheme, "Bearer") || fits != 1 {
		return errUnauthorized
	}
	return nil
}
