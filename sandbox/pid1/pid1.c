/* Pid 1 of every sandbox:  runner CONTROL STDIN STDOUT STDERR PROCESSES COMMAND…
 *
 * It says `ready` on CONTROL, waits for `go` (and ends on EOF: the supervisor is gone), starts the command with
 * RLIMIT_NPROC and STDIN, STDOUT, STDERR as its 0, 1, 2, drops every descriptor but CONTROL and 2, reaps, and reports
 * the exit status. So whatever the command closes is seen as closed outside, although pid 1 (and bwrap, which keeps
 * its own 0, 1, 2) lives on.
 *
 * No libc: it must run on any root file system, start in no time, and be short enough to be read. Built by
 * scripts/build-pid1; the result lies beside this file, and its hash in sandbox/runner.py.
 */

enum { STDERR = 2, SIGCHLD = 17, ENOENT = 2, ENOEXEC = 8, EACCES = 13, ENOTDIR = 20, EINTR = 4 };
enum { PR_SET_DUMPABLE = 4, RLIMIT_NPROC = 6, REFUSED = 125, CANNOT_EXECUTE = 126, NOT_FOUND = 127, PATH_SIZE = 4096 };

#if defined(__x86_64__)
enum { READ = 0, WRITE = 1, CLOSE = 3, DUP3 = 292, CLONE = 56, EXECVE = 59, EXIT_GROUP = 231, WAIT4 = 61, PRCTL = 157,
       PRLIMIT = 302, CLOSE_RANGE = 436 };
__asm__(".globl _start\n_start: xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call run\n hlt");

static long call(long number, long a, long b, long c, long d, long e)
{
    long result;
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = e;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
enum { READ = 63, WRITE = 64, CLOSE = 57, DUP3 = 24, CLONE = 220, EXECVE = 221, EXIT_GROUP = 94, WAIT4 = 260,
       PRCTL = 167, PRLIMIT = 261, CLOSE_RANGE = 436 };
__asm__(".globl _start\n_start: mov x29, #0\n mov x30, #0\n mov x0, sp\n bl run\n brk #0");

static long call(long number, long a, long b, long c, long d, long e)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
}
#else
#error "no system calls for this architecture yet"
#endif

struct limit {
    unsigned long soft, hard;
};

__attribute__((noreturn)) static void end(int code)
{
    for (;;)
        call(EXIT_GROUP, code, 0, 0, 0, 0);
}

static unsigned long length(const char *text)
{
    unsigned long count = 0;
    while (text[count])
        count++;
    return count;
}

static void say(long to, const char *text)
{
    call(WRITE, to, (long)text, (long)length(text), 0, 0);
}

static unsigned long number(const char *text)
{
    unsigned long value = 0;
    while (*text >= '0' && *text <= '9')
        value = value * 10 + (unsigned long)(*text++ - '0');
    return value;
}

/* The words after `name=` in the environment. */
static const char *look_up(char **environment, const char *name)
{
    unsigned long size = length(name), at;
    for (; *environment; environment++) {
        for (at = 0; at < size && (*environment)[at] == name[at]; at++)
            ;
        if (at == size && (*environment)[at] == '=')
            return *environment + size + 1;
    }
    return "/usr/local/bin:/usr/bin:/bin";
}

/* execve, or, for a script without `#!`, what every shell does with it. There is room for a word before `words`. */
static long execute(const char *file, char **words, char **environment)
{
    long error = -call(EXECVE, (long)file, (long)words, (long)environment, 0, 0);
    if (error == ENOEXEC) {
        char *first = words[0];
        words[-1] = "sh";
        words[0] = (char *)file;
        error = -call(EXECVE, (long)"/bin/sh", (long)(words - 1), (long)environment, 0, 0);
        words[0] = first;
    }
    return error;
}

/* Search PATH as execvp does; returns why nothing was executed. */
static long search(char **words, char **environment)
{
    static char file[PATH_SIZE];
    const char *path = look_up(environment, "PATH"), *name = words[0];
    unsigned long size = length(name), at, slash = 0;
    long error = ENOENT, found;
    for (at = 0; at < size; at++)
        slash |= name[at] == '/';
    if (slash || !size)
        return slash ? execute(name, words, environment) : ENOENT;
    for (;;) {
        unsigned long used = 0;
        while (*path && *path != ':') {
            if (used < PATH_SIZE)
                file[used++] = *path;
            path++;
        }
        if (used + size + 2 <= PATH_SIZE) {
            file[used ? used++ : used] = '/';
            if (used == 0)
                file[0] = '.', file[1] = '/', used = 2;
            for (at = 0; at <= size; at++)
                file[used + at] = name[at];
            found = execute(file, words, environment);
            if (found != ENOENT && found != ENOTDIR)
                error = found;
        }
        if (!*path++)
            return error;
    }
}

/* In the child. `numbers`: control, stdin, stdout, stderr. */
__attribute__((noreturn)) static void command(const long *numbers, char **words, char **environment)
{
    long error, target;
    say(numbers[0], "run\n");
    for (target = 0; target <= STDERR; target++)
        call(DUP3, numbers[1 + target], target, 0, 0, 0);
    for (target = 0; target < 4; target++)
        call(CLOSE, numbers[target], 0, 0, 0, 0);
    error = search(words, environment);
    say(STDERR, words[0]);
    say(STDERR, error == ENOENT || error == ENOTDIR ? ": not found\n"
                : error == EACCES                   ? ": permission denied\n"
                                                    : ": can't be executed\n");
    end(error == ENOENT || error == ENOTDIR ? NOT_FOUND : CANNOT_EXECUTE);
}

static int wait_for_go(long control)
{
    char text[3];
    long got, used = 0;
    while (used < 3) {
        got = call(READ, control, (long)(text + used), 3 - used, 0, 0);
        if (got == -EINTR)
            continue;
        if (got <= 0)
            return 0;
        used += got;
    }
    return text[0] == 'g' && text[1] == 'o' && text[2] == '\n';
}

static int bound(unsigned long processes)
{
    struct limit now;
    if (call(PRLIMIT, 0, RLIMIT_NPROC, 0, (long)&now, 0))
        return 0;
    now.hard = processes < now.hard ? processes : now.hard;
    now.soft = now.hard;
    return !call(PRLIMIT, 0, RLIMIT_NPROC, (long)&now, 0, 0);
}

static void report(long control, int status)
{
    char text[] = "exit 000\n";
    int code = status & 0x7f ? 128 + (status & 0x7f) : status >> 8 & 0xff;
    text[5] = (char)('0' + code / 100);
    text[6] = (char)('0' + code / 10 % 10);
    text[7] = (char)('0' + code % 10);
    say(control, text);
}

__attribute__((noreturn, used)) void run(long *stack)
{
    char **words = (char **)(stack + 1), **environment = words + stack[0] + 1;
    long numbers[4], child, pid, at;
    int status;
    call(PRCTL, PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (stack[0] < 7)
        end(REFUSED);
    for (at = 0; at < 4; at++)
        numbers[at] = (long)number(words[1 + at]);
    say(numbers[0], "ready\n");
    if (!wait_for_go(numbers[0]) || (number(words[5]) && !bound(number(words[5]))))
        end(REFUSED);
    child = call(CLONE, SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        command(numbers, words + 6, environment);
    if (child < 0) {
        say(STDERR, "the first process can't be started\n");
        end(REFUSED);
    }
    call(CLOSE_RANGE, 0, STDERR - 1, 0, 0, 0);
    call(CLOSE_RANGE, STDERR + 1, numbers[0] - 1, 0, 0, 0);
    call(CLOSE_RANGE, numbers[0] + 1, 0x7fffffff, 0, 0, 0);
    do
        pid = call(WAIT4, -1, (long)&status, 0, 0, 0);
    while (pid != child && (pid > 0 || pid == -EINTR));
    if (pid == child)
        report(numbers[0], status);
    end(0);
}
