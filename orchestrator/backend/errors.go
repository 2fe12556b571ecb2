package backend

import "berth/slots"

// The words of what every Backend refuses, so that a caller reads the same
// whatever its containers run on.

// Ended is the conflict of a Start whose id was used by a container that is
// gone; why says what became of it.
func Ended(id, why string) error {
	return slots.Errorf(slots.KindConflict, "container %s has ended, and an id is used once: %s", id, why)
}

// Stopping is the conflict of a Start whose container is on its way down.
func Stopping(id string) error {
	return slots.Errorf(slots.KindConflict, "container %s is being stopped", id)
}

// OtherSpec is the conflict of a Start whose id belongs to another Spec.
func OtherSpec(id string) error {
	return slots.Errorf(slots.KindConflict, "container %s was started with another spec", id)
}

// Interrupted is a Start or Stop (verb) of a container that was given up
// before its end was known: slots.KindInterrupted, which wraps cause.
func Interrupted(verb, id string, cause error) error {
	return slots.Errorf(slots.KindInterrupted, "%s container %s: %w", verb, id, cause)
}
