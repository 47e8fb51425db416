"""SkyPilot's optimizer on one question; run by benchmarks/catalog.py with SkyPilot's own Python, never imported.

    python skypilot_peer.py A100:8 spot        HOME holds .sky/catalogs/v8/{aws,gcp,azure}/vms.csv

Prints one line of JSON: the price of its choice, and the choice. Only its login check is replaced: without accounts it
would look at no cloud at all.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    import sky
    from sky import check, clouds, optimizer

    accelerators, capacity = sys.argv[1:3]
    known = [clouds.AWS(), clouds.GCP(), clouds.Azure()]
    check.get_cached_enabled_clouds_or_refresh = lambda *_, **__: known
    with sky.Dag() as dag:
        task = sky.Task(run="true")
        task.set_resources({sky.Resources(accelerators=accelerators, use_spot=capacity == "spot")})
    optimizer.Optimizer.optimize(dag, quiet=True)
    chosen = dag.tasks[0].best_resources
    found = {
        "usd_per_h": chosen.get_cost(3600),
        "choice": f"{chosen.cloud} {chosen.region} {chosen.zone} {chosen.instance_type}",
    }
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
