#!/usr/bin/env bash
# Adapters against the hosts themselves, each in an environment of its own under build/adapters.
# run.sh VENV [trl-environment]
# What a host wants of CUDA is left out: its reward interface is called; TRL's trainer runs on the CPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
export LINEUP_PYTHON="$PWD/$1/bin/python" OMP_WAIT_POLICY=PASSIVE HF_HUB_OFFLINE=1
export PYTHONDONTWRITEBYTECODE=1
home=$PWD/build/adapters
export LINEUP_CORPUS=$home/corpus LINEUP_SET=$home/set
here=$PWD/tests/adapters
tests=(pytest pytest-timeout "httpx>=0.27" numpy)

# environment NAME "packages that bring what they need" "packages taken alone"
environment() {
  local python=$home/$1/bin/python
  if [ ! -e "$home/$1/.done" ]; then
    echo "Installing the environment of $1"
    python3 -m venv --clear "$home/$1"
    # shellcheck disable=SC2086
    [ "$1" = verifiers ] || "$python" -m pip install -q torch==2.13.0
    # shellcheck disable=SC2086
    "$python" -m pip install -q $2 "${tests[@]}"
    # shellcheck disable=SC2086
    [ -z "$3" ] || "$python" -m pip install -q --no-deps $3
    touch "$home/$1/.done"
  fi
  "$python" -m pip install -q --no-deps --force-reinstall "$home"/wheel/*.whl
}

echo "Building lineup_fast for the hosts"
rm -rf "$home/wheel" "$home/corpus" "$home/set"
"$LINEUP_PYTHON" -m pip wheel -q --no-deps --no-build-isolation -w "$home/wheel" .
lineup=$1/bin/lineup-fast
"$lineup" index --default-data --lengths 12,24 --scale 0,100 --sample 4000 -o "$LINEUP_CORPUS"
for host in trl verl openrlhf verifiers; do
  "$lineup" export "$LINEUP_CORPUS" --to $host --style tiny --prompt "Describe the chart." \
    --limit 1024 -o "$LINEUP_SET/$host"
done

environment trl \
  "transformers==5.24.* accelerate datasets pillow jinja2 rich safetensors" trl==1.16.0
[ "${2:-}" != trl-environment ] || exit 0  # what the trainer's benchmark needs
environment verl "transformers>=5.5.3,<5.11 ray tensordict<=0.10.0 omegaconf hydra-core aiohttp \
  pandas codetiming dill pyarrow datasets cachetools packaging orjson pylatexenc peft accelerate \
  pillow" \
  "verl==0.9.1 openrlhf==0.11.2"
environment verifiers verifiers==0.4.0 ""
du -sh "$home"

# Away from the checkout: there the sources of lineup_fast would come before the installed wheel.
check() {
  echo "Checking with $1: $2"
  (cd "$home" && "$1/bin/python" -m pytest -q -rP -p no:cacheprovider -c /dev/null \
    --rootdir="$here" "$here/$2")
}
check verl check_verl.py
check verl check_openrlhf.py
check verifiers check_verifiers.py
check trl check_trl.py
