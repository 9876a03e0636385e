'use strict';
// Starts `quorate up`, breaks its members on purpose, and ends it. The names are those that users of
// mongodb-memory-server know.

const { spawn, execFile } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const readline = require('node:readline');

/** How long a set may take to become ready, in milliseconds. */
const READY_LIMIT = 60_000;
/** How long a set may take to end, in milliseconds. */
const STOP_LIMIT = 30_000;
/** How much of the program's talk is kept for an error. */
const KEPT_TALK = 4096;

class QuorateError extends Error {}

/** The program `quorate`: named by QUORATE_BIN, carried by this package, or on the PATH. */
function findProgram() {
  const named = process.env.QUORATE_BIN;
  if (named) {
    if (!fs.existsSync(named)) {
      throw new QuorateError(`QUORATE_BIN names ${named}, which is no file; name the program quorate`);
    }
    return named;
  }
  const folders = [path.join(__dirname, 'bin'), ...(process.env.PATH ?? '').split(path.delimiter)];
  const found = folders.map((folder) => path.join(folder, 'quorate')).find((file) => fs.existsSync(file));
  if (!found) {
    throw new QuorateError(
      'the program quorate is not here: this package does not carry it for this platform; ' +
        'build it with `cargo install --path crates/cli` and put it on the PATH, or name it in QUORATE_BIN',
    );
  }
  return found;
}

class Member {
  constructor(index, host, pid) {
    this.index = index;
    this.host = host;
    this.pid = pid;
  }
  /** Ends the process at once, as a crash would. */
  kill() {
    process.kill(this.pid, 'SIGKILL');
  }
  /** Stops the process without closing its sockets, as a frozen host would. */
  pause() {
    process.kill(this.pid, 'SIGSTOP');
  }
  resume() {
    process.kill(this.pid, 'SIGCONT');
  }
  /** Cuts the member off from the others. Clients still reach it. */
  part() {
    process.kill(this.pid, 'SIGUSR1');
  }
  heal() {
    process.kill(this.pid, 'SIGUSR2');
  }
}

class QuorateReplSet {
  /**
   * Starts a set and resolves when a majority has acknowledged a write.
   * `{ replSet: { count: 3, name: 'rs0' } }` and `{ members: 3, name: 'rs0' }` mean the same.
   */
  static async create(options = {}) {
    const set = new QuorateReplSet(options);
    await set.start();
    return set;
  }

  constructor(options = {}) {
    const { count, name } = options.replSet ?? {};
    this.options = { members: count ?? 3, name, ...options };
    this.servers = [];
    this.process = null;
    this.uri = null;
  }

  async start() {
    const { members, arbiters, name, data, args } = this.options;
    this.program = findProgram();
    const words = ['up', '--json', '--port', '0', '--members', String(members)];
    if (arbiters) words.push('--arbiters', String(arbiters));
    if (name) words.push('--name', name);
    words.push(...(data ? ['--data', data] : ['--memory']), ...(args ?? []));
    // `cat` ends when this process does, however it ends, because its input ends; and the set ends with it.
    words.push('--', 'cat');
    this.process = spawn(this.program, words, { stdio: ['pipe', 'pipe', 'pipe'] });
    this.process.stdin.on('error', () => {});
    let talk = '';
    this.process.stderr.on('data', (text) => {
      talk = (talk + text).slice(-KEPT_TALK);
    });
    this.ended = new Promise((resolve) => {
      this.process.once('close', resolve);
      this.process.once('error', (error) => {
        talk += String(error);
        resolve();
      });
    });
    const ready = new Promise((resolve) => {
      readline.createInterface({ input: this.process.stdout }).on('line', (line) => {
        let event;
        try {
          event = JSON.parse(line);
        } catch {
          return;
        }
        if (event.event === 'member') this.servers.push(new Member(event.id, event.host, event.pid));
        if (event.event === 'ready') {
          this.uri = event.uri;
          resolve();
        }
      });
    });
    await Promise.race([ready, this.ended, timer(READY_LIMIT)]);
    if (!this.uri) {
      await this.stop();
      throw new QuorateError(`the set ended or was not ready within ${READY_LIMIT / 1000} s:\n${talk}`);
    }
  }

  /** Resolves when the set is ready; a set that `create` gave is. */
  async waitUntilRunning() {
    if (!this.process) await this.start();
  }

  /** The connection string of the set; with a name, of that database. */
  getUri(database = '') {
    return this.uri.replace(/\/\?/, `/${database}?`);
  }

  /** Runs one command through server selection and resolves with its reply. */
  run(command, database = 'admin') {
    return new Promise((resolve, reject) => {
      const words = ['run', this.uri, JSON.stringify(command), '--database', database];
      execFile(this.program, words, (error, stdout, stderr) => {
        if (error) reject(new QuorateError(stderr.trim()));
        else resolve(JSON.parse(stdout));
      });
    });
  }

  /** The member that leads now. */
  async primary() {
    const { primary } = await this.run({ hello: 1 });
    return this.servers.find((member) => member.host === primary);
  }

  /** Has the primary make way for another. */
  async stepDown(seconds = 10) {
    await this.run({ replSetStepDown: seconds, secondaryCatchUpPeriodSecs: Math.min(seconds - 1, 10) });
  }

  /** Ends every member. Calling it again does nothing. */
  async stop() {
    const child = this.process;
    if (!child || child.exitCode !== null || child.signalCode !== null) return true;
    for (const member of this.servers) {
      try {
        member.resume();
      } catch {
        // It was killed.
      }
    }
    child.stdin.end();
    for (const signal of ['SIGTERM', 'SIGKILL']) {
      const ended = await Promise.race([this.ended.then(() => true), timer(STOP_LIMIT)]);
      if (ended) return true;
      child.kill(signal);
    }
    await this.ended;
    return true;
  }

  /** As mongodb-memory-server has it: a set in memory leaves nothing behind when it stops. */
  async cleanup() {
    await this.stop();
  }
}

/** Resolves with false after a while, and keeps no program alive. */
function timer(milliseconds) {
  return new Promise((resolve) => setTimeout(() => resolve(false), milliseconds).unref());
}

module.exports = { QuorateReplSet, MongoMemoryReplSet: QuorateReplSet, Member, QuorateError };
