// Package hostile holds no program: its tests are what hostile code in a slot
// tries, each with its id in its name, against a real agent at every level
// that the machine offers, while the neighbour slot and the agent are watched.
package hostile
