/*
** The VFS that SQLite's own tests run on: Bygone's, by the names of files.
**
** Owns: which SQL database of one Bygone directory a file's name stands for. Promises: a name means what the name of
** a file would: it is there once it was opened for writing, it is gone when it is deleted, for those who open it
** later, while those who have it open keep what they have; a file that lies at the name, since a test has written it,
** is taken over when the name is opened. May call: the VFS "bygone", Tcl.
**
** The methods of open files are Bygone's own, so that what is tested is what is shipped. SQLite loads this as an
** extension, which loads Bygone's; Tcl loads it then, too, for the command `bygone`.
**
** In the environment: BYGONE_EXTENSION, the library of Bygone's; BYGONE_RESERVED, if pages are to have the bytes at
** their end that Bygone asks for.
*/
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tcl.h>
#include <unistd.h>

#include "sqlite3ext.h"
SQLITE_EXTENSION_INIT1

#define PAGE_BYTES_DEFAULT 1024
#define PATH_BYTES_MAX 1024

/* What a file's name stands for. */
typedef struct Name {
    struct Name *next;
    char *path;
    int generation; /* counts deletions, so that a file that is made anew is another database */
    int exists;
} Name;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Name *names;
static char *directory;
static sqlite3_vfs *below;
static sqlite3_vfs vfs;

/* The name of a path; made if it is new. Paths are compared without "." and "..". */
static Name *name_of(const char *path) {
    char clean[PATH_BYTES_MAX];
    size_t length = 0;
    if (path[0] != '/') {
        if (!getcwd(clean, sizeof(clean))) return 0;
        length = strlen(clean);
    }
    while (*path) {
        size_t part = strcspn(path, "/");
        if (part == 2 && path[0] == '.' && path[1] == '.') {
            while (length > 0 && clean[--length] != '/') {}
        } else if (part > 0 && !(part == 1 && path[0] == '.')) {
            if (length + part + 2 > sizeof(clean)) return 0;
            clean[length++] = '/';
            memcpy(clean + length, path, part);
            length += part;
        }
        path += part;
        while (*path == '/') path++;
    }
    clean[length] = 0;
    for (Name *name = names; name; name = name->next) {
        if (strcmp(name->path, clean) == 0) return name;
    }
    Name *name = calloc(1, sizeof(*name));
    name->path = strdup(clean);
    name->next = names;
    return names = name;
}

/* Opens what a name stands for. `uri` is the name that SQLite passed, whose parameters go on to Bygone, or null. */
static int open_below(Name *name, const char *uri, sqlite3_file *file, int flags, int *out_flags) {
    const char *parameters[32];
    int count = 0;
    const char *key;
    for (int i = 0; uri && count < 15 && (key = sqlite3_uri_key(uri, i)) != 0; i++) {
        if (strcmp(key, "db") == 0) continue;
        parameters[2 * count] = key;
        parameters[2 * count + 1] = sqlite3_uri_parameter(uri, key);
        count++;
    }
    char *db = sqlite3_mprintf("%s#%d", name->path, name->generation);
    if (!db) return SQLITE_NOMEM;
    parameters[2 * count] = "db";
    parameters[2 * count + 1] = db;
    const char *full = sqlite3_create_filename(directory, "", "", count + 1, parameters);
    int code = full ? below->xOpen(below, full, file, flags, out_flags) : SQLITE_NOMEM;
    sqlite3_free_filename(full);
    sqlite3_free(db);
    return code;
}

/* Opens what a name stands for, for ourselves. */
static int open_alone(Name *name, sqlite3_file **file) {
    *file = calloc(1, below->szOsFile);
    int code = open_below(name, 0, *file, SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, 0);
    if (code != SQLITE_OK) {
        free(*file);
        *file = 0;
    }
    return code;
}

static void close_alone(sqlite3_file *file) {
    file->pMethods->xUnlock(file, SQLITE_LOCK_NONE);
    file->pMethods->xClose(file);
    free(file);
}

/* Writes a part of a database in a transaction of its own, past SQLite. */
static int write_alone(Name *name, const unsigned char *bytes, sqlite3_int64 count, sqlite3_int64 at) {
    sqlite3_file *file;
    int code = open_alone(name, &file);
    if (code != SQLITE_OK) return code;
    const sqlite3_io_methods *methods = file->pMethods;
    code = methods->xLock(file, SQLITE_LOCK_SHARED);
    if (code == SQLITE_OK) code = methods->xLock(file, SQLITE_LOCK_RESERVED);
    if (code == SQLITE_OK) code = methods->xLock(file, SQLITE_LOCK_EXCLUSIVE);
    /* Of an empty database the first page that is written tells the size of pages. */
    sqlite3_int64 page = at == 0 && count >= 18 ? bytes[16] << 8 | bytes[17] : 0;
    if (page == 1) page = 65536;
    if (page < 512 || (page & (page - 1)) != 0) page = PAGE_BYTES_DEFAULT;
    for (sqlite3_int64 done = 0; code == SQLITE_OK && done < count; done += page) {
        sqlite3_int64 part = count - done < page ? count - done : page;
        code = methods->xWrite(file, bytes + done, (int)part, at + done);
    }
    if (code == SQLITE_OK) code = methods->xFileControl(file, SQLITE_FCNTL_SYNC, 0);
    if (code == SQLITE_OK) code = methods->xFileControl(file, SQLITE_FCNTL_COMMIT_PHASETWO, 0);
    close_alone(file);
    return code;
}

/* Reads a part of a database, or all of it if `count` is negative. What is read is the caller's to free. */
static int read_alone(Name *name, sqlite3_int64 at, sqlite3_int64 *count, unsigned char **bytes) {
    sqlite3_file *file;
    sqlite3_int64 size = 0;
    int code = open_alone(name, &file);
    if (code != SQLITE_OK) return code;
    code = file->pMethods->xLock(file, SQLITE_LOCK_SHARED);
    if (code == SQLITE_OK) code = file->pMethods->xFileSize(file, &size);
    size = at < size ? size - at : 0;
    if (*count < 0 || *count > size) *count = size;
    *bytes = calloc(1, *count + 1);
    if (code == SQLITE_OK && *count > 0) code = file->pMethods->xRead(file, *bytes, (int)*count, at);
    close_alone(file);
    return code;
}

/* Takes over a file that a test has written itself. */
static int take_over(Name *name) {
    struct stat status;
    if (stat(name->path, &status) != 0 || !S_ISREG(status.st_mode)) return SQLITE_OK;
    FILE *from = fopen(name->path, "rb");
    if (!from) return SQLITE_CANTOPEN;
    unsigned char *bytes = calloc(1, status.st_size + 1);
    size_t count = fread(bytes, 1, status.st_size, from);
    fclose(from);
    name->generation++;
    name->exists = 1;
    int code = count > 0 ? write_alone(name, bytes, count, 0) : SQLITE_OK;
    free(bytes);
    unlink(name->path);
    return code;
}

static int has_parent(const Name *name) {
    char parent[PATH_BYTES_MAX];
    struct stat status;
    const char *end = strrchr(name->path, '/');
    snprintf(parent, sizeof(parent), "%.*s/.", (int)(end - name->path), name->path);
    return stat(parent, &status) == 0 && !(stat(name->path, &status) == 0 && S_ISDIR(status.st_mode));
}

static int vfs_open(sqlite3_vfs *self, const char *path, sqlite3_file *file, int flags, int *out_flags) {
    if (!path || !(flags & SQLITE_OPEN_MAIN_DB)) return below->xOpen(below, path, file, flags, out_flags);
    file->pMethods = 0;
    pthread_mutex_lock(&mutex);
    Name *name = name_of(path);
    int code = name && has_parent(name) ? take_over(name) : SQLITE_CANTOPEN;
    if (code == SQLITE_OK && !name->exists && !(flags & SQLITE_OPEN_CREATE)) code = SQLITE_CANTOPEN;
    if (code == SQLITE_OK) {
        /* A database in which nothing was written is no table yet. */
        int all = name->exists && !(flags & SQLITE_OPEN_READONLY) ? flags | SQLITE_OPEN_CREATE : flags;
        code = open_below(name, path, file, all, out_flags);
    }
    if (code == SQLITE_OK) name->exists = 1;
    pthread_mutex_unlock(&mutex);
    return code;
}

/* SQLite asks this of journals, which are in memory, and a few tests of databases. */
static int vfs_access(sqlite3_vfs *self, const char *path, int flags, int *out) {
    pthread_mutex_lock(&mutex);
    Name *name = name_of(path);
    *out = name && (name->exists || access(name->path, F_OK) == 0);
    pthread_mutex_unlock(&mutex);
    return SQLITE_OK;
}

static int vfs_delete(sqlite3_vfs *self, const char *path, int sync) {
    pthread_mutex_lock(&mutex);
    Name *name = name_of(path);
    if (name && name->exists) {
        name->exists = 0;
        name->generation++;
    }
    pthread_mutex_unlock(&mutex);
    return SQLITE_OK;
}

/* Leaves no bytes at the end of pages to Bygone: many tests count pages, or what fits one. */
static int file_control(sqlite3 *connection, const char *schema, int operation, void *argument) {
    if (operation == SQLITE_FCNTL_RESERVE_BYTES && *(int *)argument >= 0) return SQLITE_OK;
    return sqlite3_file_control(connection, schema, operation, argument);
}

/* Loads Bygone as SQLite would. */
static int load_bygone(sqlite3 *connection, char **error, const sqlite3_api_routines *routines) {
    static sqlite3_api_routines passed;
    const char *path = getenv("BYGONE_EXTENSION");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : 0;
    int (*load)(sqlite3 *, char **, const sqlite3_api_routines *) = 0;
    if (library) *(void **)&load = dlsym(library, "sqlite3_bygonesql_init");
    if (!load) {
        *error = sqlite3_mprintf("BYGONE_EXTENSION is not the library: %s", library || !path ? "" : dlerror());
        return SQLITE_ERROR;
    }
    passed = *routines;
    if (!getenv("BYGONE_RESERVED")) passed.file_control = file_control;
    return load(connection, error, &passed);
}

int sqlite3_bygonetcl_init(sqlite3 *connection, char **error, const sqlite3_api_routines *routines) {
    SQLITE_EXTENSION_INIT2(routines);
    int code = load_bygone(connection, error, routines);
    if (code != SQLITE_OK_LOAD_PERMANENTLY) return code;
    below = sqlite3_vfs_find("bygone");
    vfs = *below;
    vfs.pNext = 0;
    vfs.zName = "bygone-by-name";
    vfs.mxPathname = PATH_BYTES_MAX;
    vfs.xOpen = vfs_open;
    vfs.xAccess = vfs_access;
    vfs.xDelete = vfs_delete;
    return SQLITE_OK_LOAD_PERMANENTLY;
}

/* The first name from `name` on that is there. */
static Name *next_existing(Name *name) {
    while (name && !name->exists) name = name->next;
    return name;
}

static int answer(Tcl_Interp *interp, int code) {
    if (code == SQLITE_OK) return TCL_OK;
    Tcl_SetObjResult(interp, Tcl_ObjPrintf("bygone: %d", code));
    return TCL_ERROR;
}

/*
** bygone use DIRECTORY: SQL databases lie there from now on.
** bygone default: makes this VFS the default.
** bygone names: the full names of all databases.
** bygone exists NAME, bygone delete NAME, bygone size NAME, bygone read NAME OFFSET COUNT,
** bygone write NAME OFFSET BYTES: as with files; a negative COUNT means all.
*/
static int command(ClientData data, Tcl_Interp *interp, int count, Tcl_Obj *const arguments[]) {
    static const char *const words[] = {"use",  "default", "names", "exists", "delete",
                                        "size", "read",    "write", 0};
    enum { USE, DEFAULT, NAMES, EXISTS, DELETE, SIZE, READ, WRITE };
    static const int counts[] = {3, 2, 2, 3, 3, 3, 5, 5};
    int word;
    if (count < 2) {
        Tcl_WrongNumArgs(interp, 1, arguments, "WORD ...");
        return TCL_ERROR;
    }
    if (Tcl_GetIndexFromObj(interp, arguments[1], words, "word", 0, &word) != TCL_OK) return TCL_ERROR;
    if (count != counts[word]) {
        Tcl_WrongNumArgs(interp, 2, arguments, "...");
        return TCL_ERROR;
    }
    if (word == USE) {
        free(directory);
        directory = strdup(Tcl_GetString(arguments[2]));
        return TCL_OK;
    }
    if (word == DEFAULT) return answer(interp, sqlite3_vfs_register(&vfs, 1));
    int result = TCL_OK;
    pthread_mutex_lock(&mutex);
    if (word == NAMES) {
        Tcl_Obj *list = Tcl_NewListObj(0, 0);
        for (Name *name = next_existing(names); name; name = next_existing(name->next)) {
            Tcl_ListObjAppendElement(interp, list, Tcl_NewStringObj(name->path, -1));
        }
        Tcl_SetObjResult(interp, list);
        pthread_mutex_unlock(&mutex);
        return TCL_OK;
    }
    Name *name = name_of(Tcl_GetString(arguments[2]));
    unsigned char *bytes = 0;
    sqlite3_int64 length = -1;
    Tcl_WideInt at = 0, wanted = -1;
    if (!name) {
        result = word == EXISTS || word == DELETE ? TCL_OK : TCL_ERROR;
        Tcl_SetObjResult(interp, Tcl_NewIntObj(0));
    } else if (word == EXISTS) {
        Tcl_SetObjResult(interp, Tcl_NewIntObj(name->exists));
    } else if (word == DELETE) {
        name->generation += name->exists;
        name->exists = 0;
    } else if (word == WRITE) {
        int given;
        unsigned char *from = Tcl_GetByteArrayFromObj(arguments[4], &given);
        result = Tcl_GetWideIntFromObj(interp, arguments[3], &at);
        name->exists = 1;
        if (result == TCL_OK) result = answer(interp, write_alone(name, from, given, at));
    } else {
        if (word == READ) {
            result = Tcl_GetWideIntFromObj(interp, arguments[3], &at);
            if (result == TCL_OK) result = Tcl_GetWideIntFromObj(interp, arguments[4], &wanted);
            length = wanted;
        }
        if (result == TCL_OK) result = answer(interp, read_alone(name, at, &length, &bytes));
        if (result == TCL_OK && word == SIZE) Tcl_SetObjResult(interp, Tcl_NewWideIntObj(length));
        if (result == TCL_OK && word == READ) Tcl_SetObjResult(interp, Tcl_NewByteArrayObj(bytes, (int)length));
        free(bytes);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

int Bygonetcl_Init(Tcl_Interp *interp) {
    if (!Tcl_InitStubs(interp, "8.5", 0)) return TCL_ERROR;
    Tcl_CreateObjCommand(interp, "bygone", command, 0, 0);
    return TCL_OK;
}
