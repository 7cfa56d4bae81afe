/* Records what is synced to disk: loaded by LD_PRELOAD into the server and its runners.

F INODE SIZE: so much of a file is on disk. E PATH: this name is on disk. Nothing is really synced. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int log_file(void) {
    return open(getenv("RECORDER_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

static void record_file(int log, const struct stat *status) {
    dprintf(log, "F %lu %ld\n", (unsigned long)status->st_ino, (long)status->st_size);
}

static void record_folder(int log, const char *path) {
    DIR *folder = opendir(path);
    struct dirent *entry;
    while (folder && (entry = readdir(folder)))
        dprintf(log, "E %s/%s\n", path, entry->d_name);
    if (folder)
        closedir(folder);
}

static int tree_log;

static int record_entry(const char *path, const struct stat *status, int type, struct FTW *at) {
    (void)at;
    dprintf(tree_log, "E %s\n", path);
    if (type == FTW_F)
        record_file(tree_log, status);
    return 0;
}

static int record(int descriptor) {
    char link[64], path[4096];
    struct stat status;
    if (fstat(descriptor, &status))
        return -1;
    int log = log_file();
    if (S_ISREG(status.st_mode))
        record_file(log, &status);
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (S_ISDIR(status.st_mode) && length > 0) {
        path[length] = 0;
        record_folder(log, path);
    }
    close(log);
    return 0;
}

int fsync(int descriptor) { return record(descriptor); }

int fdatasync(int descriptor) { return record(descriptor); }

int syncfs(int descriptor) {
    (void)descriptor;
    tree_log = log_file();
    nftw(getenv("RECORDER_ROOT"), record_entry, 16, FTW_PHYS);
    close(tree_log);
    return 0;
}
