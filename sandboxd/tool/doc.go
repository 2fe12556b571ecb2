// Package tool holds the named operations on a slot: what a caller may ask
// for, how its arguments are read, and what the answer says. A tool turns one
// call into one api.Result and never fails otherwise. Everything that touches
// the slot goes through the Slot interface, so a tool knows neither files nor
// processes of this machine.
//
// A failure has one of three forms, and callers can tell them apart:
//
//	the command or the operation failed   success=false, error in the reference's words, no error_kind;
//	                                      file tools add metadata.reason (not_found, denied, too_large, ...)
//	the arguments are wrong               error_kind bad_request, the message names the argument
//	the slot could not carry it out       error_kind slot_lost, interrupted, internal, ...
package tool
