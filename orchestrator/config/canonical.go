package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	"berth/slots"
)

// ParseType reads the type of a sandbox; e2b is isolated.
func ParseType(t poolapi.SandboxType) (poolapi.SandboxType, error) {
	switch t {
	case poolapi.SandboxLocal, poolapi.SandboxIsolated:
		return t, nil
	case poolapi.SandboxE2B:
		return poolapi.SandboxIsolated, nil
	case "":
		return "", slots.Errorf(slots.KindBadRequest, "type is missing: want local, isolated or e2b")
	default:
		return "", slots.Errorf(slots.KindBadRequest, "type must be local, isolated or e2b, got %.40q", string(t))
	}
}

// Defaults of settings.
const (
	defaultVenvName = "venv"
	defaultTimeoutS = 300
	maxTimeoutS     = 24 * 60 * 60 // no lease lasts longer
	maxPathBytes    = 4096
)

// Canonical is the settings of a sandbox of the type as they are stored: all
// that have a default are there, nothing is null, and the keys are sorted. What
// is no setting of the type, or has a wrong form, is slots.KindBadRequest.
func Canonical(of poolapi.SandboxType, settings json.RawMessage) (json.RawMessage, error) {
	given, err := members(settings)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(given, func(_ string, v json.RawMessage) bool { return string(v) == "null" })
	text, err := json.Marshal(given)
	if err != nil {
		return nil, fmt.Errorf("encode settings: %w", err)
	}
	var filled any
	switch of {
	case poolapi.SandboxLocal:
		filled, err = canonicalLocal(text)
	case poolapi.SandboxIsolated:
		filled, err = canonicalIsolated(text)
	default:
		return nil, slots.Errorf(slots.KindBadRequest, "type must be local or isolated, got %.40q", string(of))
	}
	if err != nil {
		return nil, err
	}
	return sorted(filled)
}

func canonicalLocal(text []byte) (any, error) {
	s := poolapi.LocalSettings{VenvName: defaultVenvName}
	if err := api.DecodeStrict(text, &s); err != nil {
		return nil, err
	}
	if len(s.SandboxDir) > maxPathBytes || strings.ContainsRune(s.SandboxDir, 0) {
		return nil, slots.Errorf(slots.KindBadRequest, "sandbox_dir is no path")
	}
	if s.SandboxDir != "" && !filepath.IsAbs(s.SandboxDir) {
		return nil, slots.Errorf(slots.KindBadRequest, "sandbox_dir must be an absolute path")
	}
	if s.SandboxDir != "" {
		s.SandboxDir = filepath.Clean(s.SandboxDir)
	}
	if n := s.VenvName; n == "" || n == "." || n == ".." || len(n) > 128 || strings.ContainsAny(n, "/\x00") {
		return nil, slots.Errorf(slots.KindBadRequest, "venv_name must be the name of a directory")
	}
	var err error
	s.PipRequirements, err = requirements("pip_requirements", api.LanguagePython, s.PipRequirements)
	return s, err
}

func canonicalIsolated(text []byte) (any, error) {
	s := poolapi.IsolatedSettings{TimeoutS: defaultTimeoutS}
	if err := api.DecodeStrict(text, &s); err != nil {
		return nil, err
	}
	if s.TimeoutS < 1 || s.TimeoutS > maxTimeoutS {
		return nil, slots.Errorf(slots.KindBadRequest, "timeout_s must be 1 to %d whole seconds, got %d", maxTimeoutS, s.TimeoutS)
	}
	if len(s.Template) > maxPathBytes {
		return nil, slots.Errorf(slots.KindBadRequest, "template is no name of a pool")
	}
	var err error
	if s.PipRequirements, err = requirements("pip_requirements", api.LanguagePython, s.PipRequirements); err != nil {
		return nil, err
	}
	s.NpmRequirements, err = requirements("npm_requirements", api.LanguageNode, s.NpmRequirements)
	return s, err
}

// requirements checks a list of packages, which may hold one of a name.
func requirements(field, language string, list []api.Requirement) ([]api.Requirement, error) {
	if _, err := (api.EnvironmentSpec{Language: language, Requirements: list}).Normalized(); err != nil {
		return nil, slots.Errorf(slots.KindBadRequest, "%s: %w", field, err)
	}
	if list == nil {
		list = []api.Requirement{}
	}
	return list, nil
}

// merge is the settings with some replaced; null takes one away.
func merge(old, patch json.RawMessage) (json.RawMessage, error) {
	have, err := members(old)
	if err != nil {
		return nil, err
	}
	change, err := members(patch)
	if err != nil {
		return nil, err
	}
	maps.Copy(have, change)
	return json.Marshal(have)
}

// members are the members of an object; absent and null mean none.
func members(text json.RawMessage) (map[string]json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	if trimmed := bytes.TrimSpace(text); len(trimmed) == 0 || string(trimmed) == "null" {
		return out, nil
	}
	if !api.IsObject(text) {
		return nil, slots.Errorf(slots.KindBadRequest, "config must be an object")
	}
	return out, api.JSONError(json.Unmarshal(text, &out))
}

// otherSettings are the settings in the patch that a sandbox of the other type
// has and one of this type has not.
func otherSettings(of poolapi.SandboxType, patch json.RawMessage) (poolapi.SandboxType, bool) {
	given, err := members(patch)
	if err != nil {
		return "", false
	}
	own := map[poolapi.SandboxType][]string{
		poolapi.SandboxLocal:    {"sandbox_dir", "use_venv", "venv_name"},
		poolapi.SandboxIsolated: {"template", "timeout_s", "npm_requirements"},
	}
	for other, names := range own {
		if other != of && slices.ContainsFunc(names, func(name string) bool { _, ok := given[name]; return ok }) {
			return other, true
		}
	}
	return "", false
}

// sorted is the JSON of v with sorted keys and no spaces.
func sorted(v any) (json.RawMessage, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode settings: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var loose any // whose maps are encoded sorted
	if err := d.Decode(&loose); err != nil {
		return nil, fmt.Errorf("read settings: %w", err)
	}
	return encode(loose)
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Fingerprint names a canonical config: the SHA-256, as a decimal number, of
// the JSON {"config","organization_id","type"} with sorted keys, no spaces and
// nothing but printable ASCII.
func Fingerprint(organization string, of poolapi.SandboxType, canonical json.RawMessage) (string, error) {
	text, err := sorted(map[string]any{"config": canonical, "organization_id": organization, "type": of})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(ascii(text))
	return new(big.Int).SetBytes(sum[:]).String(), nil
}

// ascii is the JSON with everything escaped that is not printable ASCII, in
// lower case, as most other encoders do.
func ascii(text []byte) []byte {
	out := make([]byte, 0, len(text))
	escape := func(unit rune) { out = fmt.Appendf(out, `\u%04x`, unit) }
	for _, r := range string(text) {
		switch {
		case r < utf8.RuneSelf && r != 0x7f:
			out = append(out, byte(r))
		case r > 0xffff:
			r -= 0x10000
			escape(0xd800 + r>>10)
			escape(0xdc00 + r&0x3ff)
		default:
			escape(r)
		}
	}
	return out
}
