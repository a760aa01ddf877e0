/* Reads or writes blocks of a file, and prints what that cost the machine: a line for each way of access.
 *
 * usage: blocks FILE NAME BYTES [BYTES...]
 *
 * For each block size: sequential and random, reads and writes, by system calls and through a mapping. A sequential write makes the
 * file; all others find it whole. Reads find nothing of it in the page cache. Writes end with fsync or msync.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Bytes of the file, and of it at most so much and so many blocks for a line. */
enum { LENGTH = 16 << 20, MOST = 4 << 20, BLOCKS = 128 };

struct cost {
	double elapsed, processor;
	long faults, switches;
};

static char buffer[LENGTH];

static void need(int is_so, const char *what)
{
	if (!is_so) {
		perror(what);
		exit(1);
	}
}

/* The number in a file of /proc that follows a name, `skipped` numbers later. */
static double found(const char *path, const char *name, int skipped)
{
	static char line[1 << 14];
	FILE *file = fopen(path, "r");
	double value = -1;

	need(file != NULL, path);
	while (fgets(line, sizeof line, file)) {
		char *word = strtok(line, " \n");

		if (!word || strcmp(word, name) != 0)
			continue;
		for (int at = 0; at <= skipped && word; at++)
			word = strtok(NULL, " \n");
		value = word ? strtod(word, NULL) : -1;
		break;
	}
	fclose(file);
	need(value >= 0, name);
	return value;
}

/* So far: time, processor time of all processes, page faults, and context switches. */
static struct cost now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (struct cost){ time.tv_sec * 1e9 + time.tv_nsec, found("/proc/schedstat", "cpu0", 6), found("/proc/vmstat", "pgfault", 0),
			      found("/proc/stat", "ctxt", 0) };
}

static void say(const char *name, const char *way, size_t bytes, int blocks, struct cost before)
{
	struct cost after = now();

	printf("figure rzcfs; %s; %s; %zu; %d; %.0f; %.0f; %ld; %ld\n", name, way, bytes, blocks, after.elapsed - before.elapsed,
	       after.processor - before.processor, after.faults - before.faults, after.switches - before.switches);
	fflush(stdout);
}

static int count(size_t bytes)
{
	size_t blocks = bytes < MOST ? MOST / bytes : 1;

	return blocks < BLOCKS ? blocks : BLOCKS;
}

/* The place of the block, in order or in the order of a permutation. */
static off_t place(int number, size_t bytes, int is_random)
{
	size_t slots = LENGTH / bytes;

	return (is_random ? number * 2654435761ul % slots : (size_t)number) * bytes;
}

static int opened(const char *path, int flags)
{
	int file = open(path, flags, 0600);

	need(file >= 0, path);
	return file;
}

/* The file is whole, and nothing of it is in the page cache. */
static void prepare(const char *path)
{
	int file = opened(path, O_RDWR | O_CREAT);

	if (lseek(file, 0, SEEK_END) != LENGTH)
		for (size_t at = 0; at < LENGTH; at += 1 << 20)
			need(pwrite(file, buffer, 1 << 20, at) == 1 << 20, "write");
	need(fsync(file) == 0, "fsync");
	need(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0, "fadvise");
	close(file);
}

static void by_calls(const char *path, const char *name, size_t bytes, int is_write, int is_random)
{
	int blocks = count(bytes), makes = is_write && !is_random, file;
	char way[64];
	struct cost before;

	if (makes)
		unlink(path);
	else
		prepare(path);
	file = opened(path, is_write ? O_WRONLY | O_CREAT : O_RDONLY);
	before = now();
	for (int number = 0; number < blocks; number++) {
		off_t at = place(number, bytes, is_random);

		need((is_write ? pwrite(file, buffer, bytes, at) : pread(file, buffer, bytes, at)) == (ssize_t)bytes, "transfer");
	}
	need(!is_write || fsync(file) == 0, "fsync");
	snprintf(way, sizeof way, "calls, %s %s", is_random ? "random" : "sequential", is_write ? "write" : "read");
	say(name, way, bytes, blocks, before);
	close(file);
}

static void by_mapping(const char *path, const char *name, size_t bytes, int is_write, int is_random)
{
	int blocks = count(bytes), file;
	char way[64], *memory;
	struct cost before;

	prepare(path);
	file = opened(path, O_RDWR);
	memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	need(memory != MAP_FAILED, "mmap");
	before = now();
	for (int number = 0; number < blocks; number++) {
		char *block = memory + place(number, bytes, is_random);

		if (is_write)
			memcpy(block, buffer, bytes);
		else
			memcpy(buffer, block, bytes);
	}
	need(!is_write || msync(memory, LENGTH, MS_SYNC) == 0, "msync");
	snprintf(way, sizeof way, "mapping, %s %s", is_random ? "random" : "sequential", is_write ? "write" : "read");
	say(name, way, bytes, blocks, before);
	munmap(memory, LENGTH);
	close(file);
}

int main(int words_count, char **words)
{
	need(words_count > 3, "usage: blocks FILE NAME BYTES...");
	memset(buffer, 0xa5, LENGTH);
	for (int at = 3; at < words_count; at++) {
		size_t bytes = strtoul(words[at], NULL, 10);

		for (int kind = 0; kind < 4; kind++) {
			by_calls(words[1], words[2], bytes, kind & 1, kind >> 1);
			by_mapping(words[1], words[2], bytes, kind & 1, kind >> 1);
		}
	}
	return 0;
}
