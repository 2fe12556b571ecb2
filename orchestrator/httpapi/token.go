package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/httpkit"
	"berth/slots"
)

// role is who may use a route.
type role int

const (
	anybody role = iota
	trainer
	operator
)

// tokens are the digests of the bearer tokens, nil for one that is not asked
// for.
type tokens struct{ trainer, operator *[sha256.Size]byte }

func newTokens(ofTrainers, ofOperators string) tokens {
	digest := func(token string) *[sha256.Size]byte {
		if token == "" {
			return nil
		}
		sum := sha256.Sum256([]byte(token))
		return &sum
	}
	return tokens{digest(ofTrainers), digest(ofOperators)}
}

var (
	errNoToken    = slots.Errorf(slots.KindUnauthorized, "missing or malformed bearer token")
	errWrongToken = &httpkit.StatusError{Status: http.StatusForbidden, Err: slots.Errorf(slots.KindUnauthorized, "wrong bearer token")}
	errRole       = slots.Errorf(slots.KindDenied, "this is for operators")
)

// admit refuses a request that does not bear the token of the role, or of one
// that may do more.
func (t tokens) admit(r *http.Request, need role) error {
	if need == anybody || t.trainer == nil && t.operator == nil || t.trainer == nil && need == trainer {
		return nil
	}
	values := r.Header[echo.HeaderAuthorization]
	if len(values) != 1 {
		return errNoToken
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return errNoToken
	}
	// Digests are compared, so that neither a token's text nor its length shows
	// in the time that it takes, and always both.
	sum := sha256.Sum256([]byte(token))
	isTrainer, isOperator := same(t.trainer, sum), same(t.operator, sum)
	switch {
	case isOperator || isTrainer && (need == trainer || t.operator == nil):
		return nil
	case isTrainer:
		return errRole
	default:
		return errWrongToken
	}
}

func same(want *[sha256.Size]byte, have [sha256.Size]byte) bool {
	return want != nil && subtle.ConstantTimeCompare(want[:], have[:]) == 1
}
