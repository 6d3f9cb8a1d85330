#!/bin/sh
# Run a command whose tests share a folder, TEST_CACHE, for what they write; it is removed afterwards. It lies in memory,
# if there is room and code may be run from there: 100,000 small files take some disks a minute to write, and more to
# remove.
set -u

[ -z "${TEST_CACHE:-}" ] || exec "$@"

# Makes the folder, or fails.
in_memory() {
    [ "$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')" -gt 4000000 ] 2>/dev/null || return 1
    TEST_CACHE=$(mktemp -d -p /dev/shm minidynamo_tests_XXXXXX 2>/dev/null) || return 1
    printf '#!/bin/sh\n' >"$TEST_CACHE/probe" && chmod +x "$TEST_CACHE/probe"
    "$TEST_CACHE/probe" 2>/dev/null && rm "$TEST_CACHE/probe" || { rm -r "$TEST_CACHE"; return 1; }
}

in_memory || TEST_CACHE=$(mktemp -d) || exit 1
export TEST_CACHE
trap 'rm -rf "$TEST_CACHE"' EXIT
trap 'exit 130' INT TERM HUP
"$@"
