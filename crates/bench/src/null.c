/* A FUSE file system that does nothing: what a request costs before anybody looks at what it asks for.
 *
 * Any name but those that begin with "new" exists, as a file. Every answer is given at once, without looking; nothing
 * is cached, neither names nor attributes nor data.
 *
 * usage: null DIRECTORY [PROCESSOR], the one that all of it is to run on
 */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 312
#include <errno.h>
#include <fuse_lowlevel.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_NUMBER = 2, LENGTH_MAX = 1 << 20 };

static char zeros[LENGTH_MAX];

static struct stat attributes(fuse_ino_t number)
{
	struct stat found = { .st_ino = number, .st_nlink = 1, .st_size = 1 << 30 };

	found.st_mode = number == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0644;
	return found;
}

static struct fuse_entry_param entry(void)
{
	return (struct fuse_entry_param){ .ino = FILE_NUMBER, .attr = attributes(FILE_NUMBER) };
}

static void look_up(fuse_req_t request, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param found = entry();

	if (strncmp(name, "new", 3) == 0)
		fuse_reply_err(request, ENOENT);
	else
		fuse_reply_entry(request, &found);
}

static void get_attributes(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file)
{
	struct stat found = attributes(number);

	fuse_reply_attr(request, &found, 0);
}

static void open_file(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file)
{
	file->direct_io = 1;
	fuse_reply_open(request, file);
}

static void create(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *file)
{
	struct fuse_entry_param made = entry();

	file->direct_io = 1;
	fuse_reply_create(request, &made, file);
}

static void unlink_name(fuse_req_t request, fuse_ino_t parent, const char *name)
{
	fuse_reply_err(request, 0);
}

static void read_data(fuse_req_t request, fuse_ino_t number, size_t size, off_t offset, struct fuse_file_info *file)
{
	fuse_reply_buf(request, zeros, size < LENGTH_MAX ? size : LENGTH_MAX);
}

static void write_data(fuse_req_t request, fuse_ino_t number, const char *data, size_t size, off_t offset,
		       struct fuse_file_info *file)
{
	fuse_reply_write(request, size);
}

static const struct fuse_lowlevel_ops operations = {
	.lookup = look_up,
	.getattr = get_attributes,
	.open = open_file,
	.create = create,
	.unlink = unlink_name,
	.read = read_data,
	.write = write_data,
};

static void stay_on(int processor)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(processor, &set);
	if (sched_setaffinity(0, sizeof(set), &set) != 0)
		perror("null: sched_setaffinity");
}

int main(int count, char *arguments[])
{
	char *words[] = { "null", "-ofsname=null", NULL };
	struct fuse_args options = FUSE_ARGS_INIT(2, words);
	struct fuse_loop_config *configuration = fuse_loop_cfg_create();
	struct fuse_session *session;
	int result;

	if (count < 2)
		return 2;
	if (count > 2)
		stay_on(atoi(arguments[2]));
	session = fuse_session_new(&options, &operations, sizeof(operations), NULL);
	if (!session || fuse_set_signal_handlers(session) != 0 || fuse_session_mount(session, arguments[1]) != 0)
		return 1;
	/* The benchmark waits for the line. */
	puts("ready");
	fflush(stdout);
	result = fuse_session_loop_mt(session, configuration);
	fuse_session_unmount(session);
	fuse_session_destroy(session);
	fuse_loop_cfg_destroy(configuration);
	return result != 0;
}
