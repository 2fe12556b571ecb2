// Package backend is the contract between the control plane and what starts
// and stops its containers: child processes on this machine, allocations of a
// scheduler, or something that only exists in a test.
//
// # Life of a container
//
// A container begins with Start and ends for good when it is stopped or given
// up. In between it may crash: a backend that restarts it does so under the
// same ID, with the same token and with what its slots had on disk, so that
// leases and results are found again; nobody is told unless its address
// changes. An ID names one container for ever.
//
//	             Start                    Stop, or given up
//	(unknown) ───────────▶ up ──────────────────────────────────▶ down
//	                       ▲ │ crash
//	                       └─┘ restart: same ID, token, slots, leases, journal
//
// What its machine is about to do to it is told while it is up: see
// Container.Draining. When whoever has the machine loses sight of it, that is
// told as well, and taken back if it comes back in time: see Container.Unheard.
//
// # Errors
//
// Every error is a *slots.Error. Its kind means:
//
//   - slots.KindBadRequest: the Spec is impossible here. It will always be.
//   - slots.KindConflict: the ID is known with another Spec, has ended, or was
//     stopped while it was starting.
//   - slots.KindPoolExhausted: there is no room. Retryable: later there may be.
//   - slots.KindInternal: the container did not start or could not be stopped;
//     the message has the program's last words.
//   - slots.KindInterrupted: the context ended before the answer was there, or
//     the backend is closed. errors.Is finds the context's cause.
//
// After an error of Start nothing runs under the ID and nothing of it is
// left, and the ID may be started once more, except after KindConflict, which
// changes nothing. Stop is carried through even when its caller stops
// waiting for it.
package backend
