# The orchestrator. It reaches Nomad by the socket that every task has, with the
# identity of this job, which needs a policy:
#
#   nomad acl policy apply -namespace default -job berth-orchestrator berth jobs/orchestrator.policy.hcl
#   nomad var put nomad/jobs/berth-orchestrator token=$(openssl rand -hex 32) config_keys=$(openssl rand -base64 32)

variable "image" {
  type        = string
  default     = "berth/orchestrator:local"
  description = "image that holds orchestrator"
}

variable "orchestrators" {
  type        = number
  default     = 1
  description = "how many serve the pool side by side; all calls of a trajectory go to the same one, and without a volume (berth nomad render orchestrator --config-volume) each has configurations of function tools of its own, in its allocation's directory"
}

job "berth-orchestrator" {
  name        = "berth-orchestrator"
  type        = "service"
  datacenters = ["*"]

  group "orchestrator" {
    count = var.orchestrators

    constraint {
      attribute = "${attr.kernel.name}"
      value     = "linux"
      operator  = "="
    }

    task "orchestrator" {
      driver         = "docker"
      kill_timeout   = "30s"
      shutdown_delay = "2s"
      kill_signal    = "SIGTERM"

      config {
        args            = ["serve"]
        cap_drop        = ["all"]
        image           = var.image
        init            = true
        pids_limit      = 4608
        ports           = ["http"]
        readonly_rootfs = true
        security_opt    = ["no-new-privileges"]

        mount {
          readonly = false
          target   = "/tmp"
          type     = "tmpfs"

          tmpfs_options {
            size = 67108864
          }
        }
      }

      # What begins with ORCHESTRATOR_ is a flag of orchestrator serve. The pool's job
      # is made of these, in the namespace of this job.
      env {
        NOMAD_ADDR                      = "unix://${NOMAD_SECRETS_DIR}/api.sock"
        ORCHESTRATOR_BACKEND            = "nomad"
        ORCHESTRATOR_CONFIG_KEY_FILE    = "${NOMAD_SECRETS_DIR}/config-keys"
        ORCHESTRATOR_CONTAINERS         = "2"
        ORCHESTRATOR_DATA_DIR           = "${NOMAD_ALLOC_DIR}/data"
        ORCHESTRATOR_DRAIN_TIMEOUT      = "25s"
        ORCHESTRATOR_LISTEN             = "0.0.0.0:${NOMAD_PORT_http}"
        ORCHESTRATOR_LOG_JSON           = "true"
        ORCHESTRATOR_MAX_TIMEOUT        = "3600s"
        ORCHESTRATOR_METRICS_TOKEN_FILE = "${NOMAD_SECRETS_DIR}/metrics"
        ORCHESTRATOR_NETWORK            = "on"
        ORCHESTRATOR_NOMAD_CPU          = "1000"
        ORCHESTRATOR_NOMAD_DATACENTER   = "*"
        ORCHESTRATOR_NOMAD_DISK         = "2048"
        ORCHESTRATOR_NOMAD_DRAIN        = "25s"
        ORCHESTRATOR_NOMAD_DRIVER       = "docker"
        ORCHESTRATOR_NOMAD_IMAGE        = "berth/sandboxd:local"
        ORCHESTRATOR_NOMAD_MEMORY       = "1024"
        ORCHESTRATOR_NOMAD_SECCOMP      = "/etc/berth/seccomp-slots.json"
        ORCHESTRATOR_PIDS               = "512"
        ORCHESTRATOR_SLOTS              = "8"
        ORCHESTRATOR_TEMPLATE           = "default"
        ORCHESTRATOR_TOKEN_FILE         = "${NOMAD_SECRETS_DIR}/token"
      }

      # The task's, not the group's: see the job of a pool.
      service {
        name     = "berth-orchestrator"
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
        cpu    = 500
        memory = 256
      }

      # The token of trainers; where the variable has the items, that of metrics, and the
      # keys that seal the variables of function tools.
      template {
        destination = "secrets/token"
        data        = "{{ with nomadVar \"nomad/jobs/berth-orchestrator\" }}{{ .token }}{{ end }}"
        change_mode = "restart"
        perms       = "0600"
        uid         = 65532
        gid         = 65532
      }

      template {
        destination = "secrets/metrics"
        data        = "{{ with nomadVar \"nomad/jobs/berth-orchestrator\" }}{{ with .metrics.Value }}{{ . }}{{ end }}{{ end }}"
        change_mode = "restart"
        splay       = "1s"
        perms       = "0600"
        uid         = 65532
        gid         = 65532
      }

      template {
        destination = "secrets/config-keys"
        data        = "{{ with nomadVar \"nomad/jobs/berth-orchestrator\" }}{{ with .config_keys.Value }}{{ . }}{{ end }}{{ end }}"
        change_mode = "restart"
        perms       = "0600"
        uid         = 65532
        gid         = 65532
      }

      # What the policy is given to.
      identity {
        name = "default"
        env  = true
      }
    }

    # One machine that is lost takes one of several along.
    spread {
      attribute = "${node.unique.id}"
      weight    = 100
    }

    restart {
      interval = "5m"
      attempts = 3
      delay    = "2s"
      mode     = "fail"
    }

    reschedule {
      delay          = "5s"
      delay_function = "exponential"
      max_delay      = "5m"
      unlimited      = true
    }

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
      max_parallel     = 1
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
