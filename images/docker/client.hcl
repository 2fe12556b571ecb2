# What a Nomad client's configuration needs where containers run by Docker.
client {
  # Running calls have so long to end when a container is stopped. Nomad's own
  # limit is 30 s.
  max_kill_timeout = "5m"
}

plugin "docker" {
  config {
    gc {
      # An image stays when no container of it runs. By default it is removed
      # three minutes after the last one: one that was built here is lost then,
      # and one that berth-prepull has fetched is fetched again.
      image = false
    }
  }
}
