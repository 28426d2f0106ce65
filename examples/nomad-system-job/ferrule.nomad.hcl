# Installs ferrule on every Linux client and verifies it. raw_exec has to be enabled on the clients.
job "ferrule" {
  type     = "system"
  priority = 90

  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  update {
    max_parallel = 1
  }

  group "node" {
    task "install" {
      driver = "raw_exec"
      user   = "root"

      lifecycle {
        hook = "prestart"
      }

      # The release's tarball: scripts/package makes it.
      artifact {
        source      = "https://artifacts.example.com/ferrule-0.1.0-linux-x86_64.tar.gz"
        destination = "local/ferrule"
      }

      env {
        FERRULE = "${NOMAD_TASK_DIR}/ferrule/ferrule-0.1.0-linux-x86_64"
        HOST    = ""
      }

      config {
        command = "/bin/sh"
        args = ["-euc", <<-EOT
          "$FERRULE/install" --from "$FERRULE/bin" --root "$HOST"
          "$FERRULE/install" --verify --root "$HOST"
        EOT
        ]
      }
    }

    task "installed" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait; done"]
      }

      resources {
        cpu    = 10
        memory = 10
      }
    }
  }
}
