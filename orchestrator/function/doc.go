// Package function runs function tools: it checks a run, finds the settings of
// its organisation, has its environment built, and calls the tool "function" of
// a slot.
//
//	Run ─► check, coerce ─► settings, route ─► slot (warm, or acquired)
//	        ─► environment ─► strip TypeScript ─► call ─► result
//
// A slot that has served an organisation under one fingerprint is kept for the
// next run of the same two, for as long as its config says; whatever is given
// to others is released first, which makes the slot pristine and proves it. The
// lease bounds all that: what this process forgets, the container ends.
//
// Sources, arguments, states and values are not logged, and errors name
// variables and parameters, never what they hold.
package function
