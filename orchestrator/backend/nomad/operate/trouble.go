package operate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// ErrGoesOn is that what was asked for is done all the same, though nobody waits
// for its end any more.
var ErrGoesOn = errors.New("it goes on all the same")

// Trouble is what kind of thing an error is about.
type Trouble int

// Kinds of trouble.
const (
	Other         Trouble = iota // Nomad's words say it
	Unreachable                  // no Nomad answered
	Misconfigured                // the one who asks is to be told otherwise: where, as whom, about what
)

// misunderstandings are parts of what is said when another Nomad, or nothing,
// was meant, and what mends that.
var misunderstandings = []struct{ words, mend string }{
	{"nonexistent namespace", "name one that \"nomad namespace list\" has, by --namespace or NOMAD_NAMESPACE"},
	{"No path to region", "name another region by --region or NOMAD_REGION"},
	{"HTTP request to an HTTPS server", "NOMAD_ADDR is to begin with https://"},
	{"HTTP response to HTTPS client", "NOMAD_ADDR is to begin with http://"},
	{"unsupported protocol scheme", "NOMAD_ADDR is to be like http://127.0.0.1:4646"},
	{"remote error: tls: ", "show it a certificate by NOMAD_CLIENT_CERT and NOMAD_CLIENT_KEY"},
}

// NotFoundError is that there is no such job, allocation, node or secret.
type NotFoundError struct {
	What string
	Mend string // what to do about it
}

// Error names what there is not.
func (e *NotFoundError) Error() string { return "there is no " + e.What }

// Explain says what kind of trouble an error of an Operator is, and what mends
// it; "": nothing that is known here.
func Explain(err error) (kind Trouble, mend string) {
	if err == nil {
		return Other, ""
	}
	if none, ok := errors.AsType[*NotFoundError](err); ok {
		return Other, none.Mend
	}
	answer, answered := errors.AsType[api.UnexpectedResponseError](err)
	if answered && answer.StatusCode() == http.StatusForbidden {
		return Misconfigured, "name a token that may do this by NOMAD_TOKEN"
	}
	if _, name := errors.AsType[x509.HostnameError](err); name {
		return Misconfigured, "say by NOMAD_TLS_SERVER_NAME whose certificate it is"
	}
	if _, signed := errors.AsType[*tls.CertificateVerificationError](err); signed {
		return Misconfigured, "say by NOMAD_CACERT or NOMAD_CAPATH who has signed its certificate"
	}
	for _, one := range misunderstandings {
		if strings.Contains(err.Error(), one.words) {
			return Misconfigured, one.mend
		}
	}
	if _, asked := errors.AsType[*url.Error](err); asked && !answered && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return Unreachable, "no Nomad answers there; name one by NOMAD_ADDR"
	}
	return Other, ""
}

// missing reports whether the error is that there is no such thing.
func missing(err error) bool {
	answer, ok := errors.AsType[api.UnexpectedResponseError](err)
	return ok && answer.StatusCode() == http.StatusNotFound
}
