#!/usr/bin/env bash
# Builds a static Cairo out of Debian 12's source packages, for the wheel: image surfaces and nothing
# else, so neither X11 nor fonts, PNG or zlib. It draws the pixels that Debian's own build draws.
#   .ci/cairo-static.sh FOLDER [HOST]    HOST as in aarch64-linux-gnu, to compile for another machine
# Sources go to FOLDER/src; FOLDER/HOST, or FOLDER/native, gets lib/, include/ and licenses/.
set -euo pipefail
CAIRO=1.16.0
PIXMAN=0.42.2

mkdir -p "$1"
here=$(cd "$1" && pwd)
machine=$(gcc -dumpmachine)
host=${2:-$machine}
prefix=$here/${2:-native}

fail() {
  echo "static Cairo: $1" >&2
  exit 1
}

# An apt of our own: its lists lie in FOLDER, the system's settings stay as they are, root or not.
fetch() {
  command -v apt-get >/dev/null && command -v dpkg-source >/dev/null \
    || fail "expected apt-get and dpkg-source, which bring Cairo's source from Debian.
Elsewhere 'python -m pip wheel --no-deps .' builds a wheel that needs the system's Cairo."
  local site keys=/usr/share/keyrings/debian-archive-keyring.gpg
  site=$(apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(SITE)' 'Created-By: Packages' \
    | sed -n 's/^Debian|Debian|//p' | head -n 1)
  [ -n "$site" ] || fail "expected Debian among the sources of apt-get; is apt-get update due?"
  mkdir -p "$here/apt/lists/partial" "$here/apt/archives/partial" "$here/src"
  echo "deb-src [signed-by=$keys] $site bookworm main" >"$here/apt/sources.list"
  local own=(-qq -o "Dir::Etc::sourcelist=$here/apt/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$here/apt/lists" -o "Dir::Cache=$here/apt" -o APT::Sandbox::User=root)
  cd "$here/src"
  apt-get "${own[@]}" update && apt-get "${own[@]}" source cairo \
    && apt-get "${own[@]}" source --dsc-only pixman \
    && apt-get "${own[@]}" source --tar-only pixman && tar -xf "pixman_$PIXMAN.orig.tar.gz" \
    || fail "the source packages cairo and pixman of Debian 12 could not be had from $site"
  [ -d "cairo-$CAIRO" ] || fail "expected the source of Cairo $CAIRO, got $(ls)"
}

# configure NAME OPTIONS...: a source outside of its tree.
configure() {
  local source=$here/src/$1
  mkdir -p "$prefix/build/$1" && cd "$prefix/build/$1"
  shift
  PKG_CONFIG_LIBDIR=$prefix/lib/pkgconfig "$source/configure" --quiet CFLAGS=-O2 \
    --build="$machine" --host="$host" --prefix="$prefix" \
    --enable-static --disable-shared --with-pic --disable-dependency-tracking "$@"
}

# What Debian changes in Cairo's own build files is not needed: nothing is generated anew.
make_install() {
  make -s -j"$(nproc)" AUTOCONF=: AUTOMAKE=: ACLOCAL=: AUTOHEADER=: "$@"
}

build() {
  rm -rf "$prefix"
  configure "pixman-$PIXMAN" --disable-gtk --disable-libpng --disable-openmp
  make_install -C pixman install
  make_install install-pkgconfigDATA

  # The older of glibc's two names for one function, so that the wheel runs on older systems.
  cat >"$prefix/build/hypot.h" <<'HYPOT'
#ifdef __x86_64__
__asm__(".symver hypot, hypot@GLIBC_2.2.5");
#endif
HYPOT
  configure "cairo-$CAIRO" CPPFLAGS="-include $prefix/build/hypot.h" --without-x \
    --disable-{xlib,xcb,qt,gl,egl,glx,vg,drm,script,ps,pdf,svg,xml,tee,png,ft,fc} \
    --disable-{gobject,trace,interpreter,symbol-lookup,valgrind,gtk-doc}
  make_install -C src install
}

# The licences, and where the source is, as the Mozilla Public License asks.
write_licenses() {
  local cairo pixman version='s/^Version: //p'
  cairo=$(sed -n "$version" "$here"/src/cairo_*.dsc)
  pixman=$(sed -n "$version" "$here"/src/pixman_*.dsc)
  mkdir -p "$prefix/licenses"
  cp "$here/src/cairo-$CAIRO/COPYING-MPL-1.1" "$prefix/licenses/cairo-MPL-1.1"
  cp "$here/src/cairo-$CAIRO/COPYING" "$prefix/licenses/cairo-COPYING"
  cp "$here/src/pixman-$PIXMAN/COPYING" "$prefix/licenses/pixman-COPYING"
  cat >"$prefix/licenses/CARRIED" <<CARRIED
The extension of this wheel contains, statically linked:

Cairo $CAIRO, used under the Mozilla Public License 1.1 (cairo-MPL-1.1, cairo-COPYING).
pixman $PIXMAN, under the MIT licence (pixman-COPYING).

Cairo with the changes in debian/patches of Debian's source package, pixman as released, both as
.ci/cairo-static.sh in the source of lineup-fast builds them. Their source code is available under
these licences from every Debian mirror that carries sources,

    apt-get source cairo=$cairo pixman=$pixman

and, without Debian's changes, from https://www.cairographics.org/releases/.
CARRIED
}

if ! [ -e "$here/src/complete" ]; then
  echo "Fetching the source of Cairo $CAIRO and pixman $PIXMAN"
  rm -rf "$here/src" "$here/apt"
  (fetch) >/dev/null
  touch "$here/src/complete"
fi
echo "Building Cairo $CAIRO and pixman $PIXMAN for $host"
mkdir -p "$prefix"
(build) >"$prefix.log" 2>&1 || { tail -n 20 "$prefix.log" >&2; fail "see $prefix.log"; }
write_licenses
rm -rf "$prefix/build"
