// Package strip makes of TypeScript and JavaScript sources the scripts that
// slots run: types are left out, import and export become require and exports.
// It adapts esbuild.
//
//	Strip ─► kept? ─► a turn ─► a process of this program ─► esbuild ─► kept
//
// Sources are whatever anybody sends. A parser goes as deep as they are nested,
// a Go program whose stack overflows ends, and a parser that runs cannot be
// stopped: so each source is read by a process of its own, which has bounds of
// stack, memory and time, and of which nothing is left when it meets one.
package strip
