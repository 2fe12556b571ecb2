# For machines without Docker: what a Nomad client's configuration needs so that
# sandboxd runs as a program of the machine, beside what it has. The programs lie
# in /usr/local/bin then.
client {
  # Running calls have so long to end when a container is stopped. Nomad's own
  # limit is 30 s.
  max_kill_timeout = "5m"
}

plugin "raw_exec" {
  config {
    enabled = true
  }
}
