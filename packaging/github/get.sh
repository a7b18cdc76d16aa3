#!/usr/bin/env bash
# Put the command forewarn on the PATH of later steps.
# INPUT_ZIPAPP: path or URL of forewarn.pyz; if empty, the script builds it from the checkout of this action.
# INPUT_SHA256: checksum of forewarn.pyz, or empty.
set -euo pipefail

folder=$RUNNER_TEMP/forewarn
file=$folder/forewarn
mkdir -p "$folder"

case $INPUT_ZIPAPP in
  '')
    make --directory "$GITHUB_ACTION_PATH/../.." zipapp ARGS="--out '$file'"
    ;;
  http://* | https://*)
    if [[ -z $INPUT_SHA256 ]]; then
      echo '::error::the input sha256 is missing: a download is only run if its checksum is known'
      exit 1
    fi
    curl --fail --silent --show-error --location --retry 3 --output "$file" "$INPUT_ZIPAPP"
    ;;
  *)
    cp -- "$INPUT_ZIPAPP" "$file"
    ;;
esac
if [[ -n $INPUT_SHA256 ]] && ! sha256sum --check --quiet <<< "$INPUT_SHA256  $file"; then
  echo "::error::the SHA-256 of forewarn.pyz is not $INPUT_SHA256"
  exit 1
fi

chmod +x "$file"
"$file" version # fails here, not during a trial, if this machine lacks the file's Python version
echo "$folder" >> "$GITHUB_PATH"
