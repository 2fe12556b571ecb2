package nomad_test

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/hashicorp/nomad/api"
)

// lock answers an operation on the lock of a variable. As Nomad does, it keeps
// a lock for twice its TTL and its delay when nobody renews it. It does not
// insist on 10 s.
func (d *double) lock(w http.ResponseWriter, operation, path string, v *api.Variable) {
	known := d.variables[path]
	held, asked := "", ""
	if known != nil {
		held = known.LockID()
	}
	if v.Lock != nil {
		asked = v.Lock.ID
	}
	if operation == "lock-acquire" && held != "" || operation != "lock-acquire" && (held == "" || held != asked) {
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(known) // whoever asked may have left
		return
	}
	if operation == "lock-release" && v.Items != nil {
		http.Error(w, "lock release operation doesn't take variable items", http.StatusBadRequest)
		return
	}
	switch operation {
	case "lock-acquire":
		d.index++
		next := &api.Variable{Path: path, Items: v.Items, ModifyIndex: d.index, Lock: &api.VariableLock{ID: uuid(), TTL: v.Lock.TTL, LockDelay: v.Lock.LockDelay}}
		d.variables[path] = next
		id := next.LockID()
		d.locks[id] = time.AfterFunc(lasts(next.Lock), func() { d.do(func() { d.unlock(path, id) }) })
		d.answer(w, next)
	case "lock-renew":
		d.locks[held].Reset(lasts(known.Lock))
		d.answer(w, known.Metadata())
	case "lock-release":
		d.unlock(path, held)
		d.answer(w, d.variables[path])
	}
}

// invalid is why Nomad would not take a variable; "": it would.
func invalid(v *api.Variable) string {
	size := 0
	for item, text := range v.Items {
		size += len(item) + len(text)
	}
	switch {
	case size == 0:
		return "empty variables are invalid"
	case size > 64<<10:
		return "variables are limited to 64KiB in total size"
	}
	return ""
}

// lasts is how long a lock is kept that nobody renews.
func lasts(l *api.VariableLock) time.Duration {
	ttl, _ := time.ParseDuration(l.TTL)
	delay, _ := time.ParseDuration(l.LockDelay)
	return 2*ttl + delay
}

// unlock ends a lock.
func (d *double) unlock(path, id string) {
	known := d.variables[path]
	if d.ended || known == nil || known.LockID() != id {
		return
	}
	d.locks[id].Stop()
	delete(d.locks, id)
	d.index++
	next := *known
	next.Lock, next.ModifyIndex = nil, d.index
	d.variables[path] = &next
}
