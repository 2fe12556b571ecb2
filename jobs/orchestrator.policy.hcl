# What the orchestrator of a pool needs, and no more.

namespace "default" {
  capabilities = [
    "submit-job",      # register the pool's job, and have an allocation placed anew
    "read-job",        # its allocations, deployments and events
    "scale-job",       # change its count
    "alloc-lifecycle", # stop one allocation
  ]

  variables {
    # Beside each job the secret that its containers' tokens are made of, and
    # which allocation is which container.
    path "nomad/jobs/berth-*" {
      capabilities = ["list", "read", "write"]
    }
  }
}
