// Package config keeps what organisations set about their function tools:
// whether they are privileged, at most one sandbox config for each type of
// sandbox, and the environment variables of those. It is the only package that
// speaks SQL, to one SQLite file, which several processes may have open.
//
// A config is made canonical before it is stored, so that its fingerprint
// changes exactly when it does, see Canonical and Fingerprint.
//
// The values of variables are sealed before they reach the file, see Keys; in
// memory they are a Secret, which nothing prints. What belongs to another
// organisation is not found.
package config
