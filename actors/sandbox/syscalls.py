"""The seccomp filter of sandboxed calls, assembled as a classic BPF program: what is not listed as allowed is refused.

The only binding on PyPI that is not tied to a distribution (pyseccomp) needs a system library and has had no release since
2021; the program is short enough to assemble here, and a test calls every refused system call.
"""

from __future__ import annotations

import errno
import struct

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 0x40000000
"""Numbers from here on are x86-64's 32-bit interface, which would pass by a filter that compares numbers."""
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE = 0, 4
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000

FORBIDDEN_CLONE_FLAGS = 0x7E02A000
"""New namespaces of every kind, CLONE_PARENT (a child that would not be ours to find) and CLONE_PTRACE."""
ALLOWED_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS and TIOCGWINSZ, which ask whether there is a terminal; FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
ALLOWED_PRCTLS = (1, 2, 3, 15, 16, 38, 39, 0x53564D41)
"""Parent-death signal, name, whether dumpable, no new privileges; glibc names its memory with PR_SET_VMA."""
AF_UNIX = 1
SIGCONT = 18
F_SETSIG = 10
SIGNALLING = {"kill": 1, "pidfd_send_signal": 1, "rt_sigqueueinfo": 1, "rt_tgsigqueueinfo": 2, "tgkill": 2, "tkill": 1}
"""Which argument is the signal."""

ALLOWED = """
access:21: alarm:37: arch_prctl:158: brk:12:214 capget:125:90 capset:126:91 chdir:80:49 chmod:90: chown:92:
clock_getres:229:114 clock_gettime:228:113 clock_nanosleep:230:115 close:3:57 close_range:436:436
copy_file_range:326:285 creat:85: dup:32:23 dup2:33: dup3:292:24 epoll_create:213: epoll_create1:291:20
epoll_ctl:233:21 epoll_pwait:281:22 epoll_pwait2:441:441 epoll_wait:232: eventfd:284: eventfd2:290:19 execve:59:221
exit:60:93 exit_group:231:94 faccessat:269:48 faccessat2:439:439 fadvise64:221:223 fallocate:285:47 fchdir:81:50
fchmod:91:52 fchmodat:268:53 fchmodat2:452:452 fchown:93:55 fchownat:260:54 fdatasync:75:83 fgetxattr:193:10
flistxattr:196:13 flock:73:32 fork:57: fstat:5:80 fstatfs:138:44 fsync:74:82 ftruncate:77:46 futex:202:98
futex_waitv:449:449 futimesat:261: get_mempolicy:239:236 get_robust_list:274:100 getcpu:309:168 getcwd:79:17
getdents:78: getdents64:217:61 getegid:108:177 geteuid:107:175 getgid:104:176 getgroups:115:158 getitimer:36:102
getpeername:52:205 getpgid:121:155 getpgrp:111: getpid:39:172 getppid:110:173 getpriority:140:141 getrandom:318:278
getresgid:120:150 getresuid:118:148 getrlimit:97:163 getrusage:98:165 getsid:124:156 getsockname:51:204
getsockopt:55:209 gettid:186:178 gettimeofday:96:169 getuid:102:174 getxattr:191:8 inotify_add_watch:254:27
inotify_init:253: inotify_init1:294:26 inotify_rm_watch:255:28 landlock_add_rule:445:445
landlock_create_ruleset:444:444 landlock_restrict_self:446:446 lchown:94: lgetxattr:192:9 link:86: linkat:265:37
listxattr:194:11 llistxattr:195:12 lseek:8:62 lstat:6: madvise:28:233 membarrier:324:283 mincore:27:232 mkdir:83:
mkdirat:258:34 mknod:133: mknodat:259:33 mmap:9:222 mprotect:10:226 mremap:25:216 msync:26:227 munmap:11:215
nanosleep:35:101 newfstatat:262:79 open:2: openat:257:56 openat2:437:437 pause:34: pidfd_open:434:434 pipe:22:
pipe2:293:59 poll:7: ppoll:271:73 pread64:17:67 preadv:295:69 preadv2:327:286 pselect6:270:72 pwrite64:18:68
pwritev:296:70 pwritev2:328:287 read:0:63 readahead:187:213 readlink:89: readlinkat:267:78 readv:19:65 recvfrom:45:207
recvmmsg:299:243 recvmsg:47:212 rename:82: renameat:264:38 renameat2:316:276 restart_syscall:219:128 rmdir:84:
rseq:334:293 rt_sigaction:13:134 rt_sigpending:127:136 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigsuspend:130:133
rt_sigtimedwait:128:137 sched_get_priority_max:146:125 sched_get_priority_min:147:126 sched_getaffinity:204:123
sched_getattr:315:275 sched_getparam:143:121 sched_getscheduler:145:120 sched_rr_get_interval:148:127
sched_yield:24:124 select:23: sendfile:40:71 sendmmsg:307:269 sendmsg:46:211 sendto:44:206 set_robust_list:273:99
set_tid_address:218:96 setfsgid:123:152 setfsuid:122:151 setgid:106:144 setitimer:38:103 setpgid:109:154
setregid:114:143 setresgid:119:149 setresuid:117:147 setreuid:113:145 setrlimit:160:164 setsid:112:157
setsockopt:54:208 setuid:105:146 shutdown:48:210 sigaltstack:131:132 signalfd:282: signalfd4:289:74 splice:275:76
stat:4: statfs:137:43 statx:332:291 symlink:88: symlinkat:266:36 sync_file_range:277:84 sysinfo:99:179 tee:276:77
time:201: timerfd_create:283:85 timerfd_gettime:287:87 timerfd_settime:286:86 times:100:153 truncate:76:45
umask:95:166 uname:63:160 unlink:87: unlinkat:263:35 utime:132: utimensat:280:88 utimes:235: vfork:58: wait4:61:260
waitid:247:95 write:1:64 writev:20:66
"""
"""Name, number on x86-64 and on arm64 where it exists there. Timers that send any signal are missing: see ``program``."""

REFUSED = """
accept:43:202 accept4:288:242 acct:163:89 add_key:248:217 adjtimex:159:171 bind:49:200 bpf:321:280 chroot:161:51
clock_adjtime:305:266 clock_settime:227:112 connect:42:203 delete_module:176:106 execveat:322:281
fanotify_init:300:262 fanotify_mark:301:263 finit_module:313:273 fremovexattr:199:16 fsconfig:431:431
fsetxattr:190:7 fsmount:432:432 fsopen:430:430 fspick:433:433 init_module:175:105 io_cancel:210:3 io_destroy:207:1
io_getevents:208:4 io_pgetevents:333:292 io_setup:206:0 io_submit:209:2 io_uring_enter:426:426
io_uring_register:427:427 io_uring_setup:425:425 ioperm:173: iopl:172: ioprio_get:252:31 ioprio_set:251:30
kcmp:312:272 kexec_file_load:320:294 kexec_load:246:104 keyctl:250:219 listen:50:201 lremovexattr:198:15
lsetxattr:189:6 mbind:237:235 memfd_create:319:279 memfd_secret:447:447 migrate_pages:256:238 mlock:149:228
mlock2:325:284 mlockall:151:230 modify_ldt:154: mount:165:40 mount_setattr:442:442 move_mount:429:429
move_pages:279:239 mq_getsetattr:245:185 mq_notify:244:184 mq_open:240:180 mq_timedreceive:243:183
mq_timedsend:242:182 mq_unlink:241:181 msgctl:71:187 msgget:68:186 msgrcv:70:188 msgsnd:69:189 munlock:150:229
munlockall:152:231 name_to_handle_at:303:264 open_by_handle_at:304:265 open_tree:428:428 perf_event_open:298:241
personality:135:92 pidfd_getfd:438:438 pivot_root:155:41 pkey_alloc:330:289 pkey_free:331:290 pkey_mprotect:329:288
process_madvise:440:440 process_mrelease:448:448 process_vm_readv:310:270 process_vm_writev:311:271 ptrace:101:117
quotactl:179:60 quotactl_fd:443:443 reboot:169:142 remap_file_pages:216:234 removexattr:197:14 request_key:249:218
sched_setaffinity:203:122 sched_setattr:314:274 sched_setparam:142:118 sched_setscheduler:144:119 seccomp:317:277
semctl:66:191 semget:64:190 semop:65:193 semtimedop:220:192 set_mempolicy:238:237 set_mempolicy_home_node:450:450
setdomainname:171:162 setgroups:116:159 sethostname:170:161 setpriority:141:140 settimeofday:164:170 setxattr:188:5
shmat:30:196 shmctl:31:195 shmdt:67:197 shmget:29:194 socket:41:198 swapoff:168:225 swapon:167:224 sync:162:81
syncfs:306:267 syslog:103:116 umount2:166:39 unshare:272:97 userfaultfd:323:282 vhangup:153:58 vmsplice:278:75
"""
"""Refused with EPERM; what stands in no list does not exist (ENOSYS)."""

CONDITIONAL = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "kill": (62, 129),
    "pidfd_send_signal": (424, 424),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "setns": (308, 268),
    "socketpair": (53, 199),
    "tgkill": (234, 131),
    "tkill": (200, 130),
}


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(number: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | number)


_PASS = _instruction(_RETURN, _ALLOW)


def _argument(index: int) -> bytes:
    """Load the low half of an argument: those compared here are 32 bits wide in the kernel."""
    return _instruction(_LOAD, 16 + 8 * index)


def _one_of(values: tuple[int, ...], otherwise: bytes) -> bytes:
    return b"".join(_instruction(_EQUAL, value, 0, 1) + _PASS for value in values) + otherwise


def _all_but(index: int, value: int) -> bytes:
    return _argument(index) + _instruction(_EQUAL, value, 0, 1) + _refuse(errno.EPERM) + _PASS


def _conditions(first_setns_fd: int | None, *, may_continue: bool) -> dict[str, bytes]:
    """What decides about the calls that are neither allowed nor refused outright."""
    no = _refuse(errno.EPERM)
    signalling = {name: _PASS if may_continue else _all_but(index, SIGCONT) for name, index in SIGNALLING.items()}
    return {
        **signalling,
        "fcntl": _all_but(1, F_SETSIG),
        "clone": _argument(0) + _instruction(_ANY_BIT, FORBIDDEN_CLONE_FLAGS, 0, 1) + no + _PASS,
        "clone3": _refuse(errno.ENOSYS),  # its flags lie in memory, where a filter can't look; libc then uses clone
        "ioctl": _argument(1) + _one_of(ALLOWED_IOCTLS, _refuse(errno.ENOTTY)),
        "prctl": _argument(0) + _one_of(ALLOWED_PRCTLS, no),
        "prlimit64": _argument(0) + _one_of((0,), no),  # its own, not those of the slot's init
        "setns": no
        if first_setns_fd is None
        else _argument(0) + _instruction(_AT_LEAST, first_setns_fd, 0, 1) + _PASS + no,
        "socketpair": _argument(0) + _one_of((AF_UNIX,), no),
    }


def numbers(table: str, machine: str) -> dict[str, int]:
    """Number by name of the system calls that ``machine`` has."""
    column = list(ARCHITECTURES).index(machine) + 1
    rows = (entry.split(":") for entry in table.split())
    return {row[0]: int(row[column]) for row in rows if row[column]}


def program(machine: str, first_setns_fd: int | None, *, may_continue: bool = False) -> bytes:
    """The filter for ``machine`` (x86_64, aarch64). Raises KeyError for others.

    A session is stopped between two cells. Only who ``may_continue`` can send the signal that lets it go on: with it, threads
    or timers of the session's own would undo the stop.

    It is installed in the warm interpreter, whose children inherit it, since installing it takes a tenth of a
    millisecond. The interpreter itself needs setns; it keeps what it enters at descriptors from ``first_setns_fd`` on, and
    no child may open as many. None: setns is refused.
    """
    column = list(ARCHITECTURES).index(machine) if machine in ARCHITECTURES else None
    if column is None:
        raise KeyError(machine)
    parts = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_EQUAL, ARCHITECTURES[machine], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        parts += [_instruction(_AT_LEAST, X32, 0, 1), _instruction(_RETURN, _KILL)]
    for name, body in _conditions(first_setns_fd, may_continue=may_continue).items():
        parts += [_instruction(_EQUAL, CONDITIONAL[name][column], 0, len(body) // 8), body]
    for table, verdict in ((ALLOWED, _PASS), (REFUSED, _refuse(errno.EPERM))):
        for number in numbers(table, machine).values():
            parts += [_instruction(_EQUAL, number, 0, 1), verdict]
    return b"".join([*parts, _refuse(errno.ENOSYS)])
