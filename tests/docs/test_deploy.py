"""What an operator starts from can be read by what will read it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"


def options():
    """Every option of `noiseproof serve`."""
    text = (Path(__file__).parents[2] / "src/noiseproof/cli/serve.py").read_text()
    return {f"--{name.replace('_', '-')}" for name in re.findall(r"^    (\w+): ", text, re.M)}


@pytest.mark.parametrize("name", ["compose.yaml", "noiseproof.service", "kubernetes/serve.yaml"])
def test_only_options_that_there_are_stand_in_commands(name):
    used = set(re.findall(r"(?<=[\s\"])--[a-z][a-z-]+", re.sub(r"#.*", "", (DEPLOY / name).read_text())))
    assert used - {"--username", "--dbname"} <= options()


def test_passwords_are_files():
    for file in DEPLOY.rglob("*.*"):
        assert not re.search(r"postgresql://[^@\s]*:[^@\s]*@", file.read_text())


def test_the_containerfile_copies_what_there_is_and_runs_as_nobody():
    lines = re.sub(r"^#.*\n", "", (DEPLOY / "Containerfile").read_text(), flags=re.M).replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line.strip()]
    known = {
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "USER",
        "ENV",
        "EXPOSE",
        "STOPSIGNAL",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    }
    assert {name for name, _ in steps} <= known
    assert steps[0][0] == "FROM"
    for given in (rest.split() for name, rest in steps if name == "COPY"):
        if not given[0].startswith("--from"):
            assert all((DEPLOY.parent / source).exists() for source in given[:-1])
    names = [name for name, _ in steps]
    user = max(place for place, name in enumerate(names) if name == "USER")
    assert steps[user][1] == "10001"
    assert user < names.index("ENTRYPOINT")


def test_the_proxy_tells_whom_it_limits_so_and_not_that_the_service_is_away():
    text = (DEPLOY / "nginx.conf").read_text()
    for kind in ("conn", "req"):
        assert f"limit_{kind}_status 429;" in text


def test_the_compose_file_names_what_it_has():
    document = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for service in document["services"].values():
        assert set(service.get("secrets", ())) <= set(document["secrets"])
        assert set(service["networks"]) <= set(document["networks"])
        assert set(service.get("depends_on", ())) <= set(document["services"])
    assert document["services"]["serve"]["read_only"]


def test_the_manifests_run_as_nobody_and_probe_what_there_is():
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes/serve.yaml").read_text()))
    (deployment,) = [one for one in documents if one["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    (container,), (first,) = pod["containers"], pod["initContainers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    mounts = {mount["name"] for one in (container, first) for mount in one["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}


def test_what_serves_is_not_the_role_that_owns_the_ledger():
    serve = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["serve"]
    assert "//serving@" in serve["environment"]["NOISEPROOF_LEDGER"]
    assert serve["secrets"] == ["pgpass"]
    assert "//serving@" in (DEPLOY / "kubernetes/serve.yaml").read_text()


def test_a_password_file_is_one_that_libpq_reads(tmp_path):
    """libpq ignores a file that its group may read, as a mounted secret is: the manifest copies it first."""
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes/serve.yaml").read_text()))
    pod = documents[0]["spec"]["template"]["spec"]
    (first,) = pod["initContainers"]
    mounted = tmp_path / "secret"
    mounted.write_text("*:*:*:serving:x\n")
    mounted.chmod(0o440)
    given = [
        {"/secrets/pgpass": str(mounted), "/pgpass/pgpass": str(tmp_path / "pgpass")}.get(w, w)
        for w in first["command"]
    ]
    subprocess.run(given, check=True)
    assert (tmp_path / "pgpass").stat().st_mode & 0o777 == 0o600
    (variable,) = [one["value"] for one in pod["containers"][0]["env"] if one["name"] == "PGPASSFILE"]
    assert variable == first["command"][-1]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_builds_the_manifests():
    command = ["kubectl", "kustomize", str(DEPLOY / "kubernetes")]
    found = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin", "KUBECONFIG": "/dev/null"}
    )
    assert len(list(yaml.safe_load_all(found.stdout))) == 6


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_reads_the_unit_and_finds_it_closed(tmp_path):
    unit = tmp_path / "noiseproof.service"
    unit.write_text((DEPLOY / "noiseproof.service").read_text().replace("/opt/noiseproof/bin/noiseproof", "/bin/true"))
    subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, check=True)
    found = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", str(unit)], capture_output=True, text=True, check=False
    )
    level = re.search(r"exposure level for noiseproof\.service: ([\d.]+)", found.stdout)
    assert level is not None
    assert float(level[1]) < 2


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_nginx_reads_its_configuration(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", "-keyout", str(key)]
    subprocess.run([*command, "-out", str(certificate)], capture_output=True, check=True)
    text = (DEPLOY / "nginx.conf").read_text().replace("/etc/nginx/tls/", f"{tmp_path}/")
    text = text.replace("server serve:8000", "server 127.0.0.1:8000").replace("/tmp/nginx.pid", f"{tmp_path}/nginx.pid")
    (tmp_path / "nginx.conf").write_text(text)
    found = subprocess.run(
        ["nginx", "-t", "-q", "-c", str(tmp_path / "nginx.conf"), "-e", str(tmp_path / "error.log")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
def test_docker_compose_reads_its_file(tmp_path):
    # Its first version knows all of it but the name of the project.
    text = re.sub(r"^name:.*\n", "", (DEPLOY / "compose.yaml").read_text(), flags=re.M)
    (tmp_path / "compose.yaml").write_text(text)
    command = ["docker-compose", "--file", str(tmp_path / "compose.yaml"), "config", "--quiet"]
    subprocess.run(command, capture_output=True, check=True)
