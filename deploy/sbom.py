#!/usr/bin/env python3
"""Lists what the program `ebla` is built from, as CycloneDX 1.5 JSON: sbom.py FILE

A component for each crate of the normal dependencies of ebla-cli on this platform, with version, licence, checksum and package URL, and one for
each of RocksDB and its compressors, whose versions their crates name. Other C code (mimalloc, ring) has the version of its crate. Crates that only run at build time, such as
procedural macros, have the scope `excluded`. Equal sources give an equal file, so it has no time of its own.

Cargo says what is built; nothing is downloaded. tests/tidy/components.rs checks the list.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CARGO = os.environ.get("CARGO", "cargo")
PROGRAM = "ebla-cli"
# Crates whose version names, after the plus, that of the library in them.
LIBRARIES = {
    "librocksdb-sys": ("rocksdb", "github/facebook/rocksdb", "Apache-2.0"),
    "lz4-sys": ("lz4", "github/lz4/lz4", "BSD-2-Clause"),
    "zstd-sys": ("zstd", "github/facebook/zstd", "BSD-3-Clause"),
}


def run(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def is_built(dependency):
    """Whether a dependency is a normal one, rather than one of tests or of a build script."""
    return any(kind["kind"] is None for kind in dependency["dep_kinds"])


def names_of_built():
    """Name and version of each crate that cargo builds for the program. `cargo metadata` would add those of features that only tests use."""
    tree = run(CARGO, "tree", "--offline", "--locked", "--package", PROGRAM, "--edges", "normal", "--prefix", "none", "--format", "{p}")
    return {tuple(line.split(" ")[:2]) for line in tree.replace(" v", " ").splitlines() if line}


def is_macro(package):
    return any("proc-macro" in target["kind"] for target in package["targets"])


def checksums():
    """The checksum of each crate of a registry, by name and version."""
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    return {(one["name"], one["version"]): one["checksum"] for one in lock["package"] if "checksum" in one}


def licence(package):
    if package.get("license"):
        # The slash is an old way to write OR.
        return [{"expression": re.sub(r"\s*/\s*", " OR ", package["license"])}]
    return [{"license": {"name": f"see {package['license_file']}"}}] if package.get("license_file") else []


def component(package, sums):
    found = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "scope": "excluded" if is_macro(package) else "required",
        "licenses": licence(package),
        "purl": reference(package),
    }
    checksum = sums.get((package["name"], package["version"]))
    if checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return found


def library(package):
    """The library in another language in a crate, if there is one."""
    name, place, license_id = LIBRARIES.get(package["name"], (None, None, None))
    version = re.search(r"\+(?:[a-z][a-z0-9]*[-.])?([0-9.]+)$", package["version"])
    if not name or not version:
        return []
    purl = f"pkg:{place}@{version[1]}"
    expression = [{"expression": license_id}]
    return [{"type": "library", "bom-ref": purl, "name": name, "version": version[1], "scope": "required", "licenses": expression, "purl": purl}]


def document():
    host = re.search(r"^host: (.*)$", run(os.environ.get("RUSTC", "rustc"), "-vV"), re.M)[1]
    metadata = json.loads(run(CARGO, "metadata", "--offline", "--locked", "--format-version", "1", "--filter-platform", host))
    packages = {package["id"]: package for package in metadata["packages"]}
    edges = {node["id"]: [one["pkg"] for one in node["deps"] if is_built(one)] for node in metadata["resolve"]["nodes"]}
    program = next(package for package in packages.values() if package["name"] == PROGRAM)
    built = names_of_built()
    crates = [package for package in packages.values() if (package["name"], package["version"]) in built]
    crates.sort(key=lambda package: (package["name"], package["version"]))
    reached = {package["id"] for package in crates}
    sums = checksums()
    components = [component(package, sums) for package in crates if package is not program]
    dependencies = []
    for package in crates:
        libraries = library(package)
        components.extend(libraries)
        used = sorted({reference(packages[one]) for one in edges[package["id"]] if one in reached} | {one["purl"] for one in libraries})
        dependencies.append({"ref": reference(package), "dependsOn": used})

    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": reference(program),
                "name": "ebla",
                "version": program["version"],
                "licenses": licence(program),
                "purl": reference(program),
            },
            "properties": [{"name": "ebla:platform", "value": host}],
        },
        "components": components,
        "dependencies": dependencies,
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return content | {"serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}"}


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FILE")
    Path(sys.argv[1]).write_text(json.dumps(document(), indent=1, sort_keys=True) + "\n")


main()
