#!/bin/sh
# Makes the objects anew, with GCC 12 of Debian 12: for kernels whose functions begin with `endbr64`, and for others; and
# the same of the source after an update.
set -e
cd "$(dirname "$0")"
flags="-O2 -g -gdwarf-5 -fno-pic -mcmodel=kernel -mno-red-zone -fno-asynchronous-unwind-tables -fno-stack-protector
	-mno-sse -mno-mmx -ffreestanding -pg -mfentry -fdebug-prefix-map=$PWD=/build -gno-record-gcc-switches"

# With a build id of such bytes.
make() {
	for kind in none branch; do
		gcc $flags -fcf-protection=$kind -c module.c -o $kind.tmp
		printf "\\004\\0\\0\\0\\024\\0\\0\\0\\003\\0\\0\\0GNU\\0$1$1$1$1$1$1$1$1$1$1$1$1$1$1$1$1$1$1$1$1" > note.tmp
		objcopy --add-section .note.gnu.build-id=note.tmp --set-section-flags .note.gnu.build-id=alloc,readonly $kind.tmp
	done
}

make D
mv none.tmp plain.o
mv branch.tmp endbr.o
# As `lines.rs: updated` does it.
cp module.c module.kept
sed -i 's/^\tkeep(tens);$/\tif (low == 255)\n\t\tkeep(low);\n&/' module.c
make E
mv module.kept module.c
mv none.tmp plain-updated.o
mv branch.tmp endbr-updated.o
rm -f ./*.tmp
