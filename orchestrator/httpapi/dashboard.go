package httpapi

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"berth/slots"
)

// web holds the dashboard: one page, its script and its style, served as they
// are.
//
//go:embed web
var web embed.FS

// Content types of the page.
const (
	typeHTML   = "text/html; charset=utf-8"
	typeScript = "text/javascript; charset=utf-8"
	typeCSS    = "text/css; charset=utf-8"
)

// policy allows the page its own script, style and requests, and nothing else:
// no inline script, no frame, nobody else's address, and no way from text to
// markup in a browser that knows trusted types.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

// dashboard answers GET / and the routes of what the page needs. All of it is
// public: what is to be seen on the page asks for the token.
func (s *Server) dashboard(name, contentType string) echo.HandlerFunc {
	text, err := web.ReadFile("web/" + name)
	sum := sha256.Sum256(text)
	tag := `"` + hex.EncodeToString(sum[:12]) + `"`
	return func(c echo.Context) error {
		if err != nil {
			return slots.Errorf(slots.KindInternal, "read page: %w", err)
		}
		h := c.Response().Header()
		h.Set(echo.HeaderContentType, contentType)
		h.Set("Etag", tag)
		h.Set(echo.HeaderCacheControl, "no-cache") // it changes with the program
		h.Set(echo.HeaderContentSecurityPolicy, policy)
		h.Set(echo.HeaderXContentTypeOptions, "nosniff")
		h.Set(echo.HeaderReferrerPolicy, "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		s.extend(c, len(text))
		http.ServeContent(c.Response(), c.Request(), "", time.Time{}, bytes.NewReader(text))
		return nil
	}
}
