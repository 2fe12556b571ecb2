# What the orchestrator of a pool needs, and no more.

namespace "default" {
  capabilities = [
    "submit-job",      # register the pool's job, and have an allocation placed anew
    "read-job",        # its allocations, deployments and events
    "scale-job",       # change its count
    "alloc-lifecycle", # stop one allocation
  ]

  variables {
    # The secret of the pool, which its containers' tokens are made of.
    path "nomad/jobs/berth-sandboxd" {
      capabilities = ["read", "write"]
    }

    # Which allocation is which container, and who scales.
    path "berth/berth-sandboxd/*" {
      capabilities = ["list", "read", "write", "destroy"]
    }
  }
}
