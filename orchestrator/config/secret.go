package config

import (
	"fmt"
	"io"
)

// Secret is a text that does not get into logs, errors or JSON by accident:
// whatever prints it prints that it is redacted.
type Secret string

const redacted = "(redacted)"

// Reveal is the text.
func (s Secret) Reveal() string { return string(s) }

// String hides the text.
func (s Secret) String() string { return redacted }

// Format hides the text from every verb of package fmt.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalText hides the text from encoders.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
