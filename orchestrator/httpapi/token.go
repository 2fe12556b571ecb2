package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"berth/orchestrator/config"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/httpkit"
	"berth/slots"
)

// role is who may use a route.
type role int

const (
	anybody role = iota
	scraper
	trainer
	operator
)

// tokens are the digests of the bearer tokens, nil for one that is not asked
// for.
type tokens struct {
	trainer, operator, scraper *[sha256.Size]byte

	bound map[[sha256.Size]byte][]string // the organisations that each speaks for
}

func newTokens(c Config) tokens {
	digest := func(token string) *[sha256.Size]byte {
		if token == "" {
			return nil
		}
		sum := sha256.Sum256([]byte(token))
		return &sum
	}
	t := tokens{digest(c.Token), digest(c.OperatorToken), digest(c.MetricsToken), map[[sha256.Size]byte][]string{}}
	for _, b := range c.Bound {
		t.bound[sha256.Sum256([]byte(b.Token))] = b.Organizations
	}
	return t
}

var (
	errNoToken    = slots.Errorf(slots.KindUnauthorized, "missing or malformed bearer token")
	errWrongToken = &httpkit.StatusError{Status: http.StatusForbidden, Err: slots.Errorf(slots.KindUnauthorized, "wrong bearer token")}
	errRole       = slots.Errorf(slots.KindDenied, "this is for operators")
	errScraper    = slots.Errorf(slots.KindDenied, "this token is for metrics alone")
)

// speaker is on whose behalf a request comes.
type speaker struct {
	bound         bool     // to the organisations; else it may name any
	organizations []string // when bound
}

// admit refuses a request that does not bear the token of the role, or of one
// that may do more.
func (t tokens) admit(r *http.Request, need role) (speaker, error) {
	if need == anybody || t.trainer == nil && t.operator == nil || t.trainer == nil && need != operator {
		return speaker{}, nil
	}
	values := r.Header[echo.HeaderAuthorization]
	if len(values) != 1 {
		return speaker{}, errNoToken
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return speaker{}, errNoToken
	}
	// Digests are compared, so that neither a token's text nor its length shows
	// in the time that it takes, and always all.
	sum := sha256.Sum256([]byte(token))
	isTrainer, isOperator, isScraper := same(t.trainer, sum), same(t.operator, sum), same(t.scraper, sum)
	organizations, isBound := t.bound[sum]
	switch {
	case isOperator || isTrainer && (need != operator || t.operator == nil) || isScraper && need == scraper:
		return speaker{}, nil
	case isBound && need != operator:
		return speaker{bound: true, organizations: organizations}, nil
	case isTrainer || isBound:
		return speaker{}, errRole
	case isScraper:
		return speaker{}, errScraper
	default:
		return speaker{}, errWrongToken
	}
}

// errUnowned keeps tokens of organisations from what belongs to none: a lease,
// a container or a list of them would show what other organisations do there.
var errUnowned = slots.Errorf(slots.KindDenied, "this token is for the function tools of its organizations alone")

// admit finds for which organisation the request is, and refuses it when the
// speaker may not speak for that one. The handler finds it by organization.
func (who speaker) admit(c echo.Context, r route) error {
	var id string
	var err error
	switch {
	case r.about.organized == byHeader:
		id, err = organizationOf(c.Request())
	case r.about.organized == byPath:
		id, err = param(c, "organization")
	case who.bound:
		return errUnowned
	default:
		return nil
	}
	if err == nil && who.bound && !slices.Contains(who.organizations, id) {
		err = slots.Errorf(slots.KindDenied, "this token does not speak for organization %.140q", id)
	}
	c.Set(keyOrganization, id)
	return err
}

// keyOrganization is where a request's context holds its organisation.
const keyOrganization = "organization"

// organization is whose the request is, "" on a route about what belongs to no
// organisation.
func organization(c echo.Context) string {
	id, _ := c.Get(keyOrganization).(string)
	return id
}

// organizationOf is whose the request says that it is.
func organizationOf(r *http.Request) (string, error) {
	values := r.Header.Values(poolapi.HeaderOrganization)
	if len(values) == 0 {
		return poolapi.DefaultOrganization, nil
	}
	if len(values) > 1 {
		return "", slots.Errorf(slots.KindBadRequest, "%s wants one value", poolapi.HeaderOrganization)
	}
	return values[0], config.CheckOrganization(values[0])
}

func same(want *[sha256.Size]byte, have [sha256.Size]byte) bool {
	return want != nil && subtle.ConstantTimeCompare(want[:], have[:]) == 1
}
