-- `:Draftline` and its words.
local api = vim.api

local M = {}

---@type table<string, fun(call: { rest: string, lines: table? })>
local words = {
  enable = function()
    require('draftline').enable()
  end,
  disable = function()
    require('draftline').disable()
  end,
  restart = function()
    require('draftline').restart()
  end,
  status = function()
    api.nvim_echo({ { table.concat(require('draftline').report(), '\n') } }, false, {})
  end,
  prompt = function()
    require('draftline.prompt').show()
  end,
}
words.next = function()
  require('draftline.edit').next()
end
for _, kind in ipairs({ 'edit', 'fix', 'docstring', 'tests', 'explain' }) do
  words[kind] = function(call)
    require('draftline.edit').run_here(kind, call.lines, call.rest)
  end
end
local takes_words = { edit = true, tests = true, explain = true }

function M.create()
  local names = vim.tbl_keys(words)
  table.sort(names)
  api.nvim_create_user_command('Draftline', function(call)
    local name, rest = call.args:match('^(%S*)%s*(.*)$')
    local word = words[name]
    if not word or (rest ~= '' and not takes_words[name]) then
      return require('draftline.state').tell(
        ('there is no `:Draftline %s`, only %s'):format(call.args, table.concat(names, ', ')),
        vim.log.levels.ERROR
      )
    end
    word({ rest = rest, lines = call.range > 0 and { call.line1, call.line2 } or nil })
  end, {
    nargs = '+',
    range = true,
    desc = 'Draftline: ' .. table.concat(names, ', '),
    complete = function(begun, line)
      return line:match('Draftline%s+%S+%s') and {} or vim.tbl_filter(function(name)
        return vim.startswith(name, begun)
      end, names)
    end,
  })
end

return M
