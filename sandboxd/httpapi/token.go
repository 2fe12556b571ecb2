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

// tokens are the digests of one that opens routes, and of the one before it.
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
	if old := s.tokens.Load(); token != "" && old != nil {
		s.tokens.Store(old.next(token, grace))
	}
}

// RotateMetrics is Rotate for the token that opens the metrics and nothing
// else. Without one, "", the one before ends at once; a Server that had none
// takes one.
func (s *Server) RotateMetrics(token string, grace time.Duration) {
	if token == "" {
		s.scraped.Store(nil)
		return
	}
	s.scraped.Store(s.scraped.Load().next(token, grace))
}

// next is what follows when the token is to be borne; t may be nil.
func (t *tokens) next(token string, grace time.Duration) *tokens {
	now := sha256.Sum256([]byte(token))
	switch {
	case t == nil:
		return &tokens{now: now}
	case t.now == now:
		return t
	}
	return &tokens{now: now, before: t.now, until: time.Now().Add(grace)}
}

// fit reports whether the digest is that of a token that is good; t may be nil.
// Digests are compared, so that neither the token's text nor its length shows in
// the time that it takes.
func (t *tokens) fit(sum [sha256.Size]byte) bool {
	if t == nil {
		return false
	}
	fits := subtle.ConstantTimeCompare(sum[:], t.now[:])
	if time.Now().Before(t.until) {
		fits |= subtle.ConstantTimeCompare(sum[:], t.before[:])
	}
	return fits == 1
}

// authorise refuses a request that bears no token of those that the route is
// for. A caller bears the one that opens all.
func (s *Server) authorise(r *http.Request, open access) (caller bool, err error) {
	good := s.tokens.Load()
	if good == nil {
		return true, nil
	}
	values := r.Header[echo.HeaderAuthorization]
	if len(values) != 1 {
		return false, errUnauthorized
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	sum := sha256.Sum256([]byte(token))
	caller, scraper := good.fit(sum), s.scraped.Load().fit(sum)
	if !strings.EqualFold(scheme, "Bearer") || !caller && (!scraper || open != scrapers) {
		return false, errUnauthorized
	}
	return caller, nil
}
