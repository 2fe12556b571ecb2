# Has every machine fetch the image, so that no scale-out waits for it.

variable "image" {
  type        = string
  default     = "berth/sandboxd:local"
  description = "image to fetch"
}

job "berth-prepull" {
  name        = "berth-prepull"
  type        = "sysbatch"
  datacenters = ["*"]

  group "prepull" {
    constraint {
      attribute = "${attr.kernel.name}"
      value     = "linux"
      operator  = "="
    }

    task "prepull" {
      driver = "docker"

      config {
        args            = ["version"]
        cap_drop        = ["all"]
        image           = var.image
        readonly_rootfs = true
      }

      resources {
        cpu    = 50
        memory = 64
      }

      logs {
        max_files     = 1
        max_file_size = 1
      }
    }

    restart {
      interval = "5m"
      attempts = 2
      delay    = "15s"
      mode     = "fail"
    }

    ephemeral_disk {
      size = 16
    }
  }
}
