# A pool of sandboxd containers. An orchestrator registers this job by itself, of
# its own settings, and scales it; run it by hand to see it first. What is changed
# here by hand the orchestrator and each deploy replace: what they have no flag for
# is a setting of the orchestrator, by berth nomad deploy orchestrator --serve.
#
# Its secret is a variable of Nomad that the tasks of the job may read:
#
#   nomad var put nomad/jobs/berth-default token=$(openssl rand -hex 32) env=''

variable "count" {
  type        = number
  default     = 2
  description = "containers"
}

variable "slots" {
  type        = string
  default     = "8"
  description = "slots of each container"
}

variable "memory_max" {
  type        = number
  default     = 0
  description = "MB that a container may use while its machine has them to spare, where the scheduler allows memory oversubscription; 0: no more than memory"
}

variable "image" {
  type        = string
  default     = "berth/sandboxd:local"
  description = "image that holds sandboxd"
}

variable "security_opt" {
  type        = list(string)
  default     = ["no-new-privileges", "apparmor=unconfined", "seccomp=/etc/berth/seccomp-slots.json"]
  description = "the seccomp profile of images/ lies on the client's disk"
}

job "berth-default" {
  name        = "berth-default"
  type        = "service"
  datacenters = ["*"]

  group "sandboxd" {
    count = var.count

    constraint {
      attribute = "${attr.kernel.name}"
      value     = "linux"
      operator  = "="
    }

    constraint {
      attribute = "${attr.kernel.landlock}"
      operator  = "is_set"
    }

    task "sandboxd" {
      driver = "docker"
      # Leases end first, or have SANDBOXD_DRAIN_TIMEOUT. A client allows 30 s
      # unless its max_kill_timeout says more.
      kill_timeout = "30s"
      # It is taken out of the service first, then it is told to end.
      shutdown_delay = "2s"
      kill_signal    = "SIGTERM"

      config {
        args            = ["serve"]
        cap_drop        = ["audit_write", "mknod", "net_bind_service", "net_raw"]
        image           = var.image
        init            = true
        pids_limit      = 4608
        ports           = ["http"]
        readonly_rootfs = true
        # Another one than the engine's own takes a constraint as well, so that it is
        # no variable: berth nomad render sandboxd --runtime runsc.
        runtime      = ""
        security_opt = var.security_opt

        mount {
          readonly = false
          target   = "/tmp"
          type     = "tmpfs"

          tmpfs_options {
            size = 67108864
          }
        }
      }

      env {
        SANDBOXD_CPUS               = "0"
        SANDBOXD_DISK               = "0"
        SANDBOXD_DRAIN_LEASES       = "on"
        SANDBOXD_DRAIN_TIMEOUT      = "25s"
        SANDBOXD_LISTEN             = "0.0.0.0:${NOMAD_PORT_http}"
        SANDBOXD_LOG_JSON           = "true"
        SANDBOXD_MAX_TIMEOUT        = "3600s"
        SANDBOXD_MEMORY             = "0"
        SANDBOXD_METRICS_TOKEN_FILE = "${NOMAD_SECRETS_DIR}/metrics"
        SANDBOXD_NETWORK            = "on"
        SANDBOXD_PIDS               = "512"
        SANDBOXD_SLOTS              = var.slots
        SANDBOXD_TOKEN_FILE         = "${NOMAD_SECRETS_DIR}/token"
      }

      # A container that drains is alive, and not ready. The service is the task's:
      # a group's is registered before a client that was started again takes up its
      # tasks, and it kills them when no server takes the registration then.
      service {
        name     = "berth-default"
        port     = "http"
        provider = "nomad"

        check {
          name     = "alive"
          type     = "http"
          path     = "/livez"
          interval = "10s"
          timeout  = "5s"

          check_restart {
            limit = 6
            grace = "1m"
          }
        }

        check {
          name     = "ready"
          type     = "http"
          path     = "/readyz"
          interval = "2s"
          timeout  = "2s"
        }
      }

      resources {
        cpu        = 1000
        memory     = 1024
        memory_max = var.memory_max
      }

      logs {
        max_files     = 3
        max_file_size = 10
      }

      # The agent alone reads these. A new token comes by signal, without a restart.
      # The one of metrics is there where the variable has an item metrics.
      template {
        destination   = "secrets/token"
        data          = "{{ with nomadVar \"nomad/jobs/berth-default\" }}{{ hmacSHA256Hex (env \"NOMAD_ALLOC_ID\") .token.Value }}{{ end }}"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        splay         = "1s"
        perms         = "0600"
      }

      template {
        destination = "secrets/env"
        data        = "{{ with nomadVar \"nomad/jobs/berth-default\" }}{{ with .env.Value }}SANDBOXD_ENV={{ . | toJSON }}{{ end }}{{ end }}"
        change_mode = "noop"
        perms       = "0600"
        env         = true
      }

      template {
        destination   = "secrets/metrics"
        data          = "{{ with nomadVar \"nomad/jobs/berth-default\" }}{{ with .metrics.Value }}{{ . }}{{ end }}{{ end }}"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        splay         = "1s"
        perms         = "0600"
      }
    }

    # One machine that is lost takes few containers along.
    spread {
      attribute = "${node.unique.id}"
      weight    = 100
    }

    # Leases, results and workspaces outlive a crash of the agent, not the
    # allocation: it is started again in its place first.
    restart {
      interval = "10m"
      attempts = 3
      delay    = "1s"
      mode     = "fail"
    }

    # Leases outlive a client that its servers do not hear of for a while.
    disconnect {
      lost_after = "10m"
      replace    = false
      reconcile  = "keep_original"
    }

    reschedule {
      delay          = "5s"
      delay_function = "exponential"
      max_delay      = "5m"
      unlimited      = true
    }

    # Workspaces, results and leases; they go with the container.
    ephemeral_disk {
      size = 2048
    }

    # One container of a new version goes first; it is taken back when it does
    # not get well.
    update {
      max_parallel      = 1
      health_check      = "checks"
      min_healthy_time  = "3s"
      healthy_deadline  = "3m"
      progress_deadline = "10m25s"
      canary            = 1
      auto_revert       = true
      auto_promote      = true
    }

    migrate {
      max_parallel     = 0
      health_check     = "checks"
      min_healthy_time = "3s"
      healthy_deadline = "3m"
    }

    network {
      port "http" {
      }
    }
  }
}
