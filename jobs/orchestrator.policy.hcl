# What the orchestrator of a pool needs, and no more.

# Which machines are drained, and by when. Without it a drain is heard of when it
# stops containers.
node {
  policy = "read"
}

namespace "default" {
  capabilities = [
    "submit-job",      # register the pool's job, and change its count
    "read-job",        # its allocations, deployments and events
    "alloc-lifecycle", # stop one allocation
  ]

  variables {
    # Beside each job the secret that its containers' tokens are made of, which
    # allocation is which container, the lock of who scales it, how many callers
    # wait at the others, and what operators want of which container.
    path "nomad/jobs/berth-*" {
      capabilities = ["read", "write"] # listing comes with reading
    }
  }
}
