# shellcheck shell=bash
# The program of an older commit, for the test of upgrades.

# build_older: builds the commit that tests/upgrade-from.txt names, in a worktree and a target directory of its own
# below target/. Sets OLDER to the program.
build_older() {
  local commit named dir="$ROOT/target/older"
  named=$(cat "$ROOT/tests/upgrade-from.txt")
  commit=$(git rev-parse --verify "$named^{commit}") || die "tests/upgrade-from.txt: no commit $named"
  if [ -e "$dir/.git" ]; then git -C "$dir" checkout -q --detach "$commit"
  else git worktree prune && git worktree add -q --detach "$dir" "$commit"; fi
  say "building $(git log -1 --format='%h %s' "$commit")"
  # The target directory is kept, so that the next run does not build the dependencies again.
  CARGO_TARGET_DIR="$ROOT/target/older-target" cargo build --locked --bin postrider --manifest-path "$dir/Cargo.toml"
  OLDER="$ROOT/target/older-target/debug/postrider"
}
